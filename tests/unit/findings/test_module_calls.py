from __future__ import annotations

import pytest
import torch
from torch import nn

import fxpipe
from fxpipe.findings.module_calls import span_findings
from fxpipe.ir.findings import Fate
from fxpipe.portals.calls import span_fates
from tests.builders import build_capture, plan_at
from tests.captures import costs_of
from tests.unit.findings.models import Block, Closed


def two_blocks() -> nn.Module:
    return nn.Sequential(nn.Sequential(Block(), Block()), nn.Linear(8, 8))


def test_sizes_and_shares_are_of_all_that_is_inside() -> None:
    capture = build_capture(two_blocks(), torch.randn(4, 8))
    costs = costs_of(capture, (4.0, 1.0, 2.0, 1.0, 2.0))
    found = span_findings(capture, None, costs, {"0.0": "Block"})
    assert [(each.path, each.nodes, each.share) for each in found] == [
        ("0", 4, pytest.approx(0.8)),
        ("0.0", 2, pytest.approx(0.5)),
        ("0.1", 2, pytest.approx(0.3)),
    ]
    assert [each.module_class for each in found] == ["", "Block", ""]
    assert [each.parent for each in found] == [None, 0, 0]


def test_without_costs_there_are_no_shares() -> None:
    capture = build_capture(two_blocks(), torch.randn(4, 8))
    assert {each.share for each in span_findings(capture, None, None, {})} == {None}


def test_costs_of_nothing_are_no_share() -> None:
    capture = build_capture(two_blocks(), torch.randn(4, 8))
    found = span_findings(capture, None, costs_of(capture, (0.0,) * 5), {})
    assert {each.share for each in found} == {0.0}


def test_fates_and_reasons_of_a_plan() -> None:
    capture = build_capture(two_blocks(), torch.randn(4, 8))
    fates = span_fates(capture, plan_at(capture, "_0_1_linear"))
    found = span_findings(capture, fates, None, {})
    assert [(each.fate, each.stages) for each in found] == [
        (Fate.DIVIDED, (0, 1)),
        (Fate.CALLED, (0,)),
        (Fate.CALLED, (1,)),
    ]
    assert found[0].reason == "cut before _0_1_linear"


def test_what_no_plan_can_call_is_known_without_one() -> None:
    capture = fxpipe.trace(Closed(), (torch.randn(4, 8),))
    found = {each.path: each.reason for each in span_findings(capture, None, None, {})}
    assert found[""] == ""
    assert found["inner"] == "it reads first, which is not among its arguments"
