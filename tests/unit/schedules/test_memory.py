from __future__ import annotations

import pytest

from fxpipe.errors import IllegalScheduleError
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.memory import changes, check_memory, kept
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.score import Scorer

COST = StageCost(1, 2, 1, saved_bytes=10, weight_bytes=4, input_bytes=3)


def _kept(text: str, *costs: StageCost) -> list[int]:
    return list(kept(Schedule.from_text(text).computes[0], costs or (COST,)))


def test_a_forward_keeps_until_its_backward() -> None:
    assert _kept("0F0 0F1 0B0 0F2 0B1 0B2") == [10, 20, 20, 20, 20, 10]


def test_an_input_half_leaves_what_the_weight_half_needs() -> None:
    assert _kept("0F0 0I0 0F1 0W0 0I1 0W1") == [10, 10, 14, 14, 10, 4]


def test_a_recomputed_micro_batch_keeps_its_input_until_then() -> None:
    assert _kept("0F0 0F1 0R0 0B0 0R1 0B1") == [3, 6, 13, 13, 10, 10]


def test_only_what_has_a_backward_is_kept() -> None:
    assert _kept("0F0 0F1 0B1") == [0, 10, 10]
    assert _kept("0F0 0R0") == [0, 0]


def test_what_ran_before_is_kept_from_the_start() -> None:
    before, found = changes(Schedule.from_text("0B0 0I1 0W1").computes[0], [COST])
    assert before == 20
    assert found == [(0, 10), (0, 6), (0, 4)]


def test_the_first_action_over_the_limit_is_named() -> None:
    programs = lower(Schedule.from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"), linear(2))
    check_memory(programs, [COST] * 2, [20, 10])
    with pytest.raises(IllegalScheduleError) as caught:
        check_memory(programs, [COST] * 2, [19, 9])
    assert str(caught.value).splitlines() == [
        "too much is kept:",
        "  - rank 0, position 2: 0F1 keeps 20 bytes for backward, and 19 are allowed",
        "  - rank 1, position 1: 1F0 keeps 10 bytes for backward, and 9 are allowed",
    ]


def test_recomputations_start_from_what_the_graph_says() -> None:
    programs = lower(Schedule.from_text("0F0 0F1 0R0 0B0 0R1 0B1"), linear(1, 6))
    cost, graph = StageCost(1, 2, saved_bytes=10), linear(1, 6)
    check_memory(programs, [cost], [10])  # nobody says from how much
    with pytest.raises(IllegalScheduleError, match=r"position 2: 0R0 keeps 16 bytes"):
        check_memory(programs, [cost], [15], graph)
    assert simulate(programs, [cost], graph=graph).peak_bytes == (16,)
    scorer = Scorer(graph, [cost], Placement((0,)), 2, recomputed={0})
    order = scorer.orders(Schedule.from_text("0F0 0F1 0R0 0B0 0R1 0B1"))
    assert scorer.score(order).peaks == (16,)
