from dataclasses import replace

import pytest
import torch
from torch import nn

from fxpipe.errors import IllegalPlanError
from fxpipe.partitioners.check import check_plan, violations
from tests.builders import build_capture, plan_at
from tests.captures import chain_capture

CHAIN = chain_capture(4)
PLAN = plan_at(CHAIN, "neg_2")


def test_a_legal_plan_passes() -> None:
    check_plan(CHAIN, PLAN)
    assert violations(CHAIN, PLAN) == ()


def test_a_plan_of_another_graph_is_stale() -> None:
    other = chain_capture(5)
    found = violations(other, PLAN)
    assert len(found) == 2
    assert "another graph" in found[0]
    assert "no stage is given for 'neg_4'" in found[1]


def test_unknown_nodes_are_named_and_long_lists_cut_short() -> None:
    extra = {f"x{i}": 1 for i in range(7)}
    (found,) = violations(CHAIN, replace(PLAN, stages={**PLAN.stages, **extra}))
    assert found == "the graph has no node 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more"


def test_stages_never_go_back() -> None:
    stages = dict(zip(PLAN.stages, (0, 1, 0, 1), strict=True))
    (found,) = violations(CHAIN, replace(PLAN, stages=stages))
    assert "'neg_2' (model.py:3 in forward) is in stage 0" in found


def test_every_violation_is_listed() -> None:
    net = nn.Sequential(
        nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2), nn.ReLU(inplace=True)
    )
    capture = build_capture(net, torch.randn(1, 2))
    plan = replace(plan_at(capture, "_1", "_3"), fingerprint="old")
    with pytest.raises(IllegalPlanError) as error:
        check_plan(capture, plan)
    lines = str(error.value).split("\n")
    assert len(lines) == 4
    assert "another graph (old" in lines[1]
    assert "the cut between '_0'" in lines[2]
    assert "the cut between '_2'" in lines[3]
