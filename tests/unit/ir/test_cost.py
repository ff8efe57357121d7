from __future__ import annotations

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
