from __future__ import annotations

from dataclasses import replace

import torch

from fxpipe.codegen.header import describe, header, starts
from fxpipe.codegen.split import split
from fxpipe.ir.spec import Opaque, TensorSpec
from fxpipe.portals.edges import link
from tests.builders import build_capture, plan_at
from tests.unit.codegen.models import SmallUNet


def test_the_plan_and_all_that_crosses() -> None:
    capture = build_capture(SmallUNet().eval(), torch.randn(2, 1, 8, 8), torch.ones(1))
    plan = plan_at(capture, "max_pool2d", "up2")
    graph = link(capture, plan)
    first, _, third = split(capture, plan, graph)
    assert list(header(first, capture, plan, graph)) == [
        "Stage 0 (of 3, counted from 0) of tests.unit.codegen.models.SmallUNet",
        "",
        f"recorded  in eval mode at batch size 2, capture {capture.fingerprint()}",
        "plan      4, 11, 16 nodes, cut before max_pool2d, up2",
        "nodes     enc1_conv … enc1_drop",
        "takes     image: f32[2,1,8,8] from the caller",
        "stashes   enc1_drop: f32[2,4,8,8] to stage 1 and 2",
    ]
    last = list(header(third, capture, plan, graph))
    assert "pops      enc1_drop: f32[2,4,8,8] from stage 0" in last
    assert last[-1] == "returns   mul_1, dropout, enc1_drop, weight"


def test_starts_without_names_in_the_plan() -> None:
    capture = build_capture(SmallUNet(), torch.randn(2, 1, 8, 8), torch.ones(1))
    plan = replace(plan_at(capture, "up2"), starts=())
    assert starts(capture, plan) == ("up2",)
    assert starts(capture, replace(plan_at(capture), starts=())) == ()


def test_specs_in_words() -> None:
    tensor = TensorSpec((2, 3), "int64")
    assert describe(tensor) == "i64[2,3]"
    assert describe((tensor, None, 3)) == "(i64[2,3], None, 3)"
    assert describe({"a": Opaque("Cache")}) == "{a: <Cache>}"
