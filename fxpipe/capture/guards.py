"""Decisions on data that a capture was specialised for: do they come out the same for a call?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch import nn

from fxpipe import ops
from fxpipe.capture.signature import flatten
from fxpipe.capture.slices import Slice, SliceRunner, is_stored_on_a_module, needed_for
from fxpipe.ir.capture import Capture


def guards_of(capture: Capture) -> tuple[torch.fx.Node, ...]:
    """The nodes that check a decision."""
    return tuple(node for node in capture.graph.nodes if node.target is ops.check_value)


def failed_guard(
    capture: Capture,
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> torch.fx.Node | None:
    """The first check that would fail for a call; None if the capture holds for it.

    Whoever asks more than once keeps a `GuardCheck`.
    """
    return GuardCheck(capture, model).failed(args, kwargs)


class Ahead:
    """Buffers as the micro-batches of a step will leave them that were checked so far.

    A model may decide on a buffer that its forward changes (``self.n += 1; if self.n > 100:``). All
    micro-batches of a step are checked before the first one runs, so that what each would write is
    kept here for the next.

    Attributes:
        buffers: name → value; only those that decisions depend on.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, torch.Tensor] = {}

    def copy(self) -> Ahead:
        """The same buffers, to try out what comes next."""
        copy = Ahead()
        copy.buffers.update(self.buffers)
        return copy

    @contextmanager
    def in_model(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model has these buffers: it can be recorded for the next micro-batch."""
        held: list[tuple[dict[str, Any], str, torch.Tensor | None]] = []
        try:
            for name, value in self.buffers.items():
                path, _, last = name.rpartition(".")
                registry = model.get_submodule(path).__dict__["_buffers"]
                held.append((registry, last, registry[last]))
                registry[last] = value.clone()
            yield
        finally:
            for registry, last, buffer in held:
                registry[last] = buffer


class GuardCheck:
    """The checks of a capture, ready to be made before each run.

    Only what the checks need is computed: they depend on inputs and buffers alone. Nothing of it
    stays: what it would write into is copied first.

    Attributes:
        model: the model that was recorded.
        guards: the nodes that check a decision, in recorded order.
    """

    def __init__(self, capture: Capture, model: nn.Module) -> None:
        self.guards = guards_of(capture)
        self._capture = capture
        self.model = model
        writers, self._unknown = _writers(capture, model, Slice.of(capture.graph, self.guards))
        self._part = Slice.of(capture.graph, (*self.guards, *writers))
        self._placeholders = [node for node in capture.graph.nodes if node.op == "placeholder"]

    def failed(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        ahead: Ahead | None = None,
    ) -> torch.fx.Node | None:
        """The first check that would fail for a call; None if the capture holds for it.

        Args:
            args: of one micro-batch.
            kwargs: of the same.
            ahead: what earlier micro-batches of the step leave. It is brought up to date if no check
                fails.
        """
        if not self.guards:
            return None
        leaves, _ = flatten((tuple(args), dict(kwargs or {})))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        inputs = dict(zip(self._placeholders, given, strict=True))
        runner = _Checking.of(self._capture, self.model)
        runner.given = {} if ahead is None else ahead.buffers
        runner.device = given[0].device if given else None  # as the model was recorded
        with runner.leaving_nothing(self._part):
            for node in runner.visit(self._part, inputs):
                if node.target is ops.check_value:
                    found, expected = runner.values[node]
                    if found != expected:
                        return node
            if ahead is not None:
                ahead.buffers.update(self._left_by(runner))
        return None

    def _left_by(self, runner: _Checking) -> dict[str, torch.Tensor]:
        """The buffers that the checked micro-batch writes, with what it leaves there."""
        left = {}
        for node in self._part.nodes:
            storages = node.meta.get("storages", ())
            is_buffer = node.op == "get_attr" and str(node.target) not in self._capture.constants
            if is_buffer and not self._part.written.isdisjoint(storages):
                left[str(node.target)] = runner.values[node]
            elif is_stored_on_a_module(node) and node.meta["buffers"]:
                left[node.meta["buffers"][0]] = runner.values[node]
        return {name: value for name, value in left.items() if name not in self._unknown}


def _writers(
    capture: Capture, model: nn.Module, part: Slice
) -> tuple[list[torch.fx.Node], set[str]]:
    """The nodes that change buffers which a slice reads, and buffers that only a run can tell."""
    names = {str(node.target) for node in part.nodes if node.op == "get_attr"}
    names -= set(capture.constants)
    changes = [n for n in capture.graph.nodes if not names.isdisjoint(n.meta.get("buffers", ()))]
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    unknown = {
        name
        for node in changes
        if any(_is_run(each, weights) for each in needed_for(node))
        for name in node.meta["buffers"]
    }
    return [n for n in changes if unknown.isdisjoint(n.meta["buffers"])], unknown


def _is_run(node: torch.fx.Node, weights: set[str]) -> bool:
    """Whether a node belongs to the run of the model: it is too much to compute beforehand."""
    if node.op == "get_attr":
        return str(node.target) in weights
    return node.op == "call_module" or bool(node.meta.get("draws"))


class _Checking(SliceRunner):
    """A runner for which the value of a check is what it compares."""

    given: Mapping[str, torch.Tensor]

    def attribute(self, name: str) -> Any:
        return self.given[name] if name in self.given else super().attribute(name)

    def run_node(self, node: torch.fx.Node) -> Any:
        if node.target is ops.check_value:
            return self.load(node.args)
        if is_stored_on_a_module(node):
            return self.load(node.args[2])
        return super().run_node(node)
