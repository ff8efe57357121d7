"""`Script`: the graph being written, with the facts about every node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from fxpipe.capture.containers import tensors
from fxpipe.capture.naming import candidate, safe
from fxpipe.capture.sources import Sources
from fxpipe.capture.spans import Frame
from fxpipe.capture.specs import Storages, spec_of
from fxpipe.capture.watch import Effects, storage_key

CONSTANT = "_fxpipe_constant_"
"""Prefix of the names of objects that are not the model's own."""


class Script:
    """A torch.fx graph that grows node by node, in the order things happened.

    Attributes:
        graph: the graph.
        body: names of the nodes that compute, in order.
        constants: objects that ``get_attr`` nodes refer to and the model does not own.
        frames: the module calls in progress, outermost first.
        regions: ids of the autocast and grad-mode regions in progress.
        tensor_names: id of every parameter and buffer → its name.
        buffer_names: storage key of every buffer and parameter → its name.
        kept: node name → a copy of its value, if values are to be kept; None if not.
    """

    def __init__(self, names: dict[int, str], buffers: dict[int, str]) -> None:
        self.graph = torch.fx.Graph()
        self.body: list[str] = []
        self.constants: dict[str, Any] = {}
        self.frames: list[Frame] = []
        self.regions: list[int] = []
        self.storages = Storages()
        self.sources = Sources()
        self.tensor_names = names
        self.buffer_names = buffers
        self.kept: dict[str, Any] | None = None
        self._attributes: dict[str, torch.fx.Node] = {}
        self._constant_of: dict[int, str] = {}
        self._next_draw: dict[str, int] = {}
        self._ranks: dict[str, int] = {}

    @property
    def frame(self) -> Frame:
        """The innermost module call in progress."""
        return self.frames[-1]

    def placeholder(self, name: str, value: torch.Tensor) -> torch.fx.Node:
        """A node for an input of the model."""
        node = self.graph.create_node("placeholder", safe(name), name=safe(name))
        return self._describe(node, value, Effects(), "")

    def parameter(self, tensor: torch.Tensor) -> torch.fx.Node | None:
        """The node that reads a parameter or buffer of the model; None for any other tensor."""
        name = self.tensor_names.get(id(tensor))
        return None if name is None else self._attribute(name, tensor)

    def constant(self, value: Any) -> torch.fx.Node:
        """A node that reads an object which is not the model's own."""
        name = self._constant_of.get(id(value))
        if name is None:
            name = self._constant_of[id(value)] = f"{CONSTANT}{len(self.constants)}"
            self.constants[name] = value
        return self._attribute(name, value)

    def emit(
        self,
        op: str,
        target: Callable[..., Any] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
        value: Any = None,
        effects: Effects | None = None,
        scope: str | None = None,
    ) -> torch.fx.Node:
        """A node for something that was computed; `value` is what came out.

        `scope` keys the random numbers: that of the innermost module if None.
        """
        name = candidate(op, target)
        node = self.graph.create_node(op, target, args, kwargs or {}, name=name)
        self.body.append(node.name)
        if self.kept is not None:
            self.kept[node.name] = [tensor.detach().clone() for tensor in tensors(value)]
        effects = effects or Effects()
        source = self.sources.here()
        self._describe(node, value, effects, source)
        node.meta["draws"] = effects.draws
        if effects.draws:
            scope = scope or self.frame.scope
            first = self._next_draw.get(scope, 0)
            self._next_draw[scope] = first + effects.draws
            node.meta["rng"] = (scope, first)
        return node

    def _attribute(self, name: str, value: Any) -> torch.fx.Node:
        if name not in self._attributes:
            node = self.graph.create_node("get_attr", name, name=candidate("get_attr", name))
            self._attributes[name] = self._describe(node, value, Effects(), "")
        return self._attributes[name]

    def _describe(
        self, node: torch.fx.Node, value: Any, effects: Effects, source: str
    ) -> torch.fx.Node:
        frame = self.frames[-1] if self.frames else None
        storages = self.storages.of(value)
        mutates = self.storages.known(effects.writes)
        node.meta.update(
            path=frame.path if frame else "",
            call=frame.call if frame else 0,
            source=source,
            spec=spec_of(value),
            storages=storages,
            mutates=mutates,
            buffers=self._written_buffers(effects),
            draws=effects.draws,
            regions=tuple(self.regions),
        )
        return node

    def _written_buffers(self, effects: Effects) -> tuple[str, ...]:
        """Names of what was written into, in the order of the model, then of what was replaced."""
        written = (self.buffer_names[key] for key in effects.writes if key in self.buffer_names)
        return tuple(dict.fromkeys((*sorted(written, key=self._rank), *sorted(effects.replaces))))

    def _rank(self, name: str) -> int:
        if not self._ranks:
            self._ranks = {known: i for i, known in enumerate(self.buffer_names.values())}
        return self._ranks.setdefault(name, len(self._ranks))

    def replace_buffer(
        self, name: str, old: torch.Tensor | None, new: torch.Tensor, effects: Effects
    ) -> None:
        """Note that a buffer is another tensor now: as good as written into."""
        effects.replaces.add(name)
        if old is not None:
            key = storage_key(old)
            effects.writes.add(key)
            if self.buffer_names.get(key) == name:
                del self.buffer_names[key]
        self.buffer_names[storage_key(new)] = name
