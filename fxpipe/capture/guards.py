"""Decisions on data that a capture was specialised for: do they come out the same for a call?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import nn

from fxpipe import ops
from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.signature import flatten
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

    Only what the checks need is computed: they depend on inputs and buffers alone.
    """
    guards = guards_of(capture)
    if not guards:
        return None
    leaves, _ = flatten((tuple(args), dict(kwargs or {})))
    placeholders = [node for node in capture.graph.nodes if node.op == "placeholder"]
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    inputs = dict(zip(placeholders, given, strict=True))
    runner = GraphRunner.of(capture, model)
    with torch.no_grad():
        for guard in guards:
            value, expected = guard.args
            found = runner.evaluate(value, inputs)  # type: ignore[arg-type]
            if found != runner.load(expected):
                return guard
    return None
