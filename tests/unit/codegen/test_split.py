from __future__ import annotations

import torch

from fxpipe.codegen.split import split
from fxpipe.portals.edges import link
from tests.builders import build_capture, plan_at
from tests.unit.codegen.models import SmallUNet


def names(nodes) -> list[str]:
    return [node.name for node in nodes]


def test_what_comes_in_and_goes_out() -> None:
    capture = build_capture(SmallUNet(), torch.randn(2, 1, 8, 8), torch.ones(1))
    plan = plan_at(capture, "max_pool2d", "up2")
    first, second, third = split(capture, plan, link(capture, plan))
    assert names(first.inputs) == ["image"]
    assert names(first.stashes) == ["enc1_drop"]
    assert first.outputs == ()
    assert second.inputs == ()
    assert names(second.pops) == ["enc1_drop"]
    assert names(second.outputs) == ["enc2_drop", "dropout"]
    assert names(third.inputs) == ["weight", "enc2_drop", "dropout"]
    assert names(third.pops) == ["enc1_drop"]
    assert names(third.outputs) == ["mul_1", "dropout", "enc1_drop", "weight"]
    assert [len(part.nodes) for part in (first, second, third)] == [4, 11, 16]
    assert [len(part.steps) for part in (first, second, third)] == [1, 5, 10]
