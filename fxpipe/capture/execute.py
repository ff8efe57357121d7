"""`GraphRunner`: runs a captured graph on the model it was recorded from, node by node."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import torch
import torch.fx
from torch import nn

from fxpipe import ops
from fxpipe.capture.restore import Modes
from fxpipe.ir.capture import Capture


class GraphRunner:
    """Runs the nodes of a capture in order; subclasses override `run_node` to look at each.

    Attributes:
        model: whose modules, parameters and buffers the graph refers to.
        values: node → its value, as long as a later node reads it.
    """

    def __init__(
        self, graph: torch.fx.Graph, model: nn.Module, constants: Mapping[str, Any]
    ) -> None:
        self.graph = graph
        self.model = model
        self.constants = constants
        self.values: dict[torch.fx.Node, Any] = {}
        self._modules: dict[str, nn.Module] = {}

    @classmethod
    def of(cls, capture: Capture, model: nn.Module) -> Self:
        """A runner for a capture of `model`."""
        return cls(capture.graph, model, capture.constants)

    @cached_property
    def _last_use(self) -> dict[torch.fx.Node, list[torch.fx.Node]]:
        return _last_uses(self.graph)

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The output leaves for the values of the placeholders, in order."""
        self.values = {}
        given = iter(inputs)
        with Modes():  # what a failing node leaves entered is left
            for node in self.graph.nodes:
                if node.op == "output":
                    return tuple(self.load(node.args[0]))
                if node.op == "placeholder":
                    self.values[node] = next(given)
                else:
                    self.values[node] = self.run_node(node)
                for done in self._last_use.get(node, ()):
                    del self.values[done]
        raise AssertionError("a captured graph ends in an output node")

    def run_node(self, node: torch.fx.Node) -> Any:
        """The value of a node."""
        if node.op == "get_attr":
            return self.attribute(str(node.target))
        args, kwargs = self.load(node.args), self.load(node.kwargs)
        if node.op == "call_module":
            module = self._module(str(node.target))
            return ops.entrance(module, node.meta.get("via", "call"))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    def _module(self, path: str) -> nn.Module:
        if path not in self._modules:
            self._modules[path] = self.model.get_submodule(path)
        return self._modules[path]

    def attribute(self, name: str) -> Any:
        """What a ``get_attr`` node reads."""
        if name in self.constants:
            return self.constants[name]
        return operator.attrgetter(name)(self.model)

    def load(self, argument: Any) -> Any:
        """An argument with its nodes replaced by their values."""
        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, tuple | list):
            items = [self.load(item) for item in argument]
            return tuple(items) if isinstance(argument, tuple) else items
        if isinstance(argument, dict):
            return {key: self.load(item) for key, item in argument.items()}
        if isinstance(argument, slice):
            bounds = (argument.start, argument.stop, argument.step)
            return slice(*(self.load(bound) for bound in bounds))
        return argument


def _last_uses(graph: torch.fx.Graph) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    last: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        last[node] = node
        for read in node.all_input_nodes:
            last[read] = node
    done: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node, user in last.items():
        if user.op != "output":
            done.setdefault(user, []).append(node)
    return done
