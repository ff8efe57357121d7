from __future__ import annotations

import math
from typing import Any

import pytest

from fxpipe.ir.action import Kind
from fxpipe.ir.cost import CostProfile, NodeCost, StageCost, with_reads
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph

PROFILE = CostProfile(
    {
        "conv": NodeCost(1.0, 3.0, 2.0, 10, 100, 50),
        "relu": NodeCost(0.5, 0.5, 0.0, 1, 20, 50),
    },
    "measure",
    4,
    "abc",
    {"conv": 400},
)


def test_a_stage_costs_what_its_nodes_do() -> None:
    assert PROFILE.over(["conv", "relu"]) == StageCost(1.5, 3.5, 2.0, 120, 400)
    assert PROFILE.over(["relu"]) == StageCost(0.5, 0.5, 0.0, 20, 0)
    assert PROFILE.over([]) == StageCost(0, 0)


def test_stages_know_what_they_read() -> None:
    plan = PartitionPlan({"conv": 0, "relu": 1}, "abc")
    value, rows = TensorSpec((5,), "float32"), TensorSpec((2,), "float32")
    edges = (Edge("conv", 0, (1,), value),)
    graph = StageGraph(2, (Edge("x", HOST, (0, 1), rows),), edges)
    costs = PROFILE.of_stages(plan, graph)
    assert [cost.input_bytes for cost in costs] == [8, 8 + 20]
    assert [cost.saved_bytes for cost in costs] == [100, 20]
    told = StageCost(1, 2, input_bytes=7)
    assert with_reads([told, StageCost(1, 2)], graph)[0] == told
    assert with_reads([told, StageCost(1, 2)], None)[1].input_bytes == 0


def test_the_halves_of_a_backward_add_up() -> None:
    stage = PROFILE.over(["conv", "relu"])
    assert stage.input + stage.weight == stage.backward


def test_text_and_total() -> None:
    assert PROFILE.total == 5.0
    assert (
        str(PROFILE) == "CostProfile (measure, batch 4): 2 nodes, 5000.00 ms forward and backward"
    )


def test_seconds_of_every_kind() -> None:
    stage = StageCost(1.0, 5.0, 2.0)
    assert {str(kind): stage.seconds(kind) for kind in Kind} == {
        "F": 1.0,
        "B": 5.0,
        "I": 3.0,
        "W": 2.0,
        "R": 1.0,
    }
    assert StageCost(1.0, 5.0, recompute=0.75).seconds(Kind.RECOMPUTE) == 0.75


def test_a_weight_half_needs_everything_unless_told() -> None:
    assert StageCost(1, 1, saved_bytes=10).kept_for_weight == 10
    assert StageCost(1, 1, saved_bytes=10, weight_bytes=4).kept_for_weight == 4


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_times_are_finite(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        StageCost(wrong, 1.0)
    with pytest.raises(ValueError, match="finite"):
        StageCost(1.0, 1.0, recompute=wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"forward": -1.0}, "cannot be negative"),
        ({"update": -0.5}, "cannot be negative"),
        ({"recompute": -0.5}, "cannot be negative"),
        ({"weight": 2.5}, "the weight half takes 2.5 of the 2 seconds of a backward"),
    ],
)
def test_impossible_seconds_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StageCost(**({"forward": 1.0, "backward": 2.0} | wrong))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"saved_bytes": -1}, "bytes of a stage cannot be negative, got .*saved_bytes=-1"),
        ({"parameter_bytes": -1}, "bytes of a stage cannot be negative"),
        ({"input_bytes": -1}, "bytes of a stage cannot be negative"),
        ({"saved_bytes": 4, "weight_bytes": -1}, "bytes of a stage cannot be negative"),
        ({"saved_bytes": 4, "weight_bytes": 5}, "weight half needs 5 of the 4 bytes"),
        ({"saved_bytes": "4"}, "got .*saved_bytes='4'"),
        ({"forward": "1"}, "seconds of a stage must be finite numbers, got .*forward='1'"),
    ],
)
def test_impossible_bytes_and_words_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StageCost(**({"forward": 1.0, "backward": 2.0} | wrong))


def test_a_weight_half_that_is_all_of_a_backward_but_for_rounding() -> None:
    assert StageCost(1.0, 0.1 + 0.2, weight=0.3 + 1e-12).input == 0.0
