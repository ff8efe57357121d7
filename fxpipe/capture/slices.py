"""The part of a graph that a few values need, run on its own: nothing outside of it is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.fx
from torch import nn

from fxpipe import ops
from fxpipe.capture.copies import copied
from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.restore import ModelState, Modes, Randomness
from fxpipe.capture.watch import storage_key
from fxpipe.ir.spec import TensorSpec

_MODE_SWITCHES: Final = (ops.enter_autocast, ops.exit_autocast, ops.set_grad_enabled)


@dataclass(frozen=True)
class Slice:
    """Nodes to run, in order.

    Attributes:
        written: ids of the storages they write into.
        runs_modules: whether modules or random draws are among them, because those write into what
            the wanted values read.
    """

    nodes: tuple[torch.fx.Node, ...]
    written: frozenset[int]
    runs_modules: bool

    @classmethod
    def of(cls, graph: torch.fx.Graph, wanted: Sequence[torch.fx.Node]) -> Slice:
        """What must run for some nodes' values, without placeholders."""
        needed = {each for node in wanted for each in needed_for(node)}
        if any(node.meta.get("regions") for node in needed):
            needed |= _switches_before(graph, set(wanted))
        nodes = tuple(
            node for node in graph.nodes if node in needed and not _is_outside(node, wanted)
        )
        return cls(
            nodes,
            frozenset(storage for node in nodes for storage in node.meta.get("mutates", ())),
            any(node.op == "call_module" or node.meta.get("draws") for node in nodes),
        )


def needed_for(node: torch.fx.Node) -> set[torch.fx.Node]:
    """The nodes that must run for a node's value: its inputs, and what writes into their storages."""
    needed = {node}
    waiting = [node]
    earlier = _writers_before(node)
    while waiting:
        current = waiting.pop()
        storages = set(current.meta.get("storages", ()))
        writers = [each for each in earlier if storages & set(each.meta.get("mutates", ()))]
        for each in (*current.all_input_nodes, *writers):
            if each not in needed:
                needed.add(each)
                waiting.append(each)
    return needed


def _writers_before(node: torch.fx.Node) -> list[torch.fx.Node]:
    found = []
    for each in node.graph.nodes:
        if each is node:
            break
        if each.meta.get("mutates"):
            found.append(each)
    return found


def _switches_before(graph: torch.fx.Graph, wanted: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes that switch autocast or the grad mode, up to the last wanted one."""
    nodes = list(graph.nodes)
    last = max(position for position, node in enumerate(nodes) if node in wanted)
    return {node for node in nodes[:last] if node.target in _MODE_SWITCHES}


def _is_outside(node: torch.fx.Node, wanted: Sequence[torch.fx.Node]) -> bool:
    """Placeholders are given; a tensor stored on a module is read by no later node."""
    if node.op == "placeholder":
        return True
    return is_stored_on_a_module(node) and node not in wanted


def is_stored_on_a_module(node: torch.fx.Node) -> bool:
    """Whether a node keeps a value in an attribute of a module (not of a tensor)."""
    if node.target is not ops.set_attribute:
        return False
    owner = node.args[0]
    is_object = isinstance(owner, torch.fx.Node) and owner.op == "get_attr"
    return is_object and not isinstance(owner.meta["spec"], TensorSpec)  # type: ignore[union-attr]


class SliceRunner(GraphRunner):
    """Runs slices. What they write into is copied first: inputs, buffers and constants stay.

    Attributes:
        device: where buffers are read from; None: where they are. The stages of a pipeline may have
            moved them from where the model was recorded.
    """

    def __init__(
        self, graph: torch.fx.Graph, model: nn.Module, constants: Mapping[str, Any]
    ) -> None:
        super().__init__(graph, model, constants)
        self._memory: dict[int, torch.UntypedStorage] = {}
        self.device: torch.device | None = None

    def attribute(self, name: str) -> Any:
        """What a ``get_attr`` node reads, on the runner's device."""
        found = super().attribute(name)
        if self.device is None or not isinstance(found, torch.Tensor):
            return found
        return found.to(self.device)

    def evaluate(self, node: torch.fx.Node, inputs: Mapping[torch.fx.Node, Any]) -> Any:
        """The value of one node, given those of placeholders; nothing else is computed."""
        part = Slice.of(self.graph, (node,))
        with self.leaving_nothing(part):
            for _ in self.visit(part, inputs):
                pass
        return self.values[node]

    @contextmanager
    def leaving_nothing(self, part: Slice) -> Iterator[None]:
        """Modes are as before at the end; so are the model and all generators if modules run."""
        with ExitStack() as stack:
            if part.runs_modules:
                stack.enter_context(ModelState(self.model))
                stack.enter_context(Randomness())
            stack.enter_context(Modes())
            stack.enter_context(torch.no_grad())
            yield

    def visit(self, part: Slice, inputs: Mapping[torch.fx.Node, Any]) -> Iterator[torch.fx.Node]:
        """Run the nodes of a slice; each is handed out once its value is in `values`."""
        self._memory = {}
        self.values = {
            node: copied(value) if self._is_written(node, part) else value
            for node, value in inputs.items()
        }
        for node in part.nodes:
            value = self.run_node(node)
            if node.op == "get_attr" and self._is_written(node, part):
                value = self._own(value)
            self.values[node] = value
            yield node

    def _is_written(self, node: torch.fx.Node, part: Slice) -> bool:
        return not part.written.isdisjoint(node.meta.get("storages", ()))

    def _own(self, value: Any) -> Any:
        """A tensor in a copy of its memory; those that share memory share the copy."""
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided:
            return copied(value)
        memory = self._memory.setdefault(storage_key(value), value.untyped_storage().clone())  # type: ignore[no-untyped-call]
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(memory, value.storage_offset(), value.shape, value.stride())
