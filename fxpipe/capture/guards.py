"""Decisions on data that a capture was specialised for: do they come out the same for a call?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import nn

from fxpipe import ops
from fxpipe.capture.signature import flatten
from fxpipe.capture.slices import Slice, SliceRunner
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


class GuardCheck:
    """The checks of a capture, ready to be made before each run.

    Only what the checks need is computed: they depend on inputs and buffers alone. Nothing of it
    stays: what it would write into is copied first.

    Attributes:
        guards: the nodes that check a decision, in recorded order.
    """

    def __init__(self, capture: Capture, model: nn.Module) -> None:
        self.guards = guards_of(capture)
        self._capture = capture
        self._model = model
        self._part = Slice.of(capture.graph, self.guards)
        self._placeholders = [node for node in capture.graph.nodes if node.op == "placeholder"]

    def failed(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> torch.fx.Node | None:
        """The first check that would fail for a call; None if the capture holds for it."""
        if not self.guards:
            return None
        leaves, _ = flatten((tuple(args), dict(kwargs or {})))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        inputs = dict(zip(self._placeholders, given, strict=True))
        runner = _Checking.of(self._capture, self._model)
        runner.device = given[0].device if given else None  # as the model was recorded
        with runner.leaving_nothing(self._part):
            for node in runner.visit(self._part, inputs):
                if node.target is ops.check_value:
                    found, expected = runner.values[node]
                    if found != expected:
                        return node
        return None


class _Checking(SliceRunner):
    """A runner for which the value of a check is what it compares."""

    def run_node(self, node: torch.fx.Node) -> Any:
        if node.target is ops.check_value:
            return self.load(node.args)
        return super().run_node(node)
