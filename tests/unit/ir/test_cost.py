from __future__ import annotations

from fxpipe.ir.action import Kind
from fxpipe.ir.cost import CostProfile, NodeCost, StageCost

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
