from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fxpipe.ir.action import Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.refilling import FILLS, refilled
from fxpipe.schedules.check import check
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.schedules.starts import place
from tests.unit.planner.search.problems import equal, problems

LATE_WEIGHTS = "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1W0 1F1 1I1 1W1"


def _refilled(problem: Problem, text: str, fill: float = 1.0) -> str | None:
    orders = refilled(problem, problem.scorer.orders(Schedule.from_text(text)), fill)
    return None if orders is None else str(problem.schedule(orders, ""))


def test_a_weight_half_that_holds_others_up_goes_to_the_end() -> None:
    assert _refilled(equal(2, m=2), LATE_WEIGHTS) == (
        "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1"
    )


def test_it_fills_gaps_that_are_long_enough() -> None:
    """Rank 0 waits a second for I1, weight halves take one, two or three."""
    early, late = "0F0 0F1 0I0 0W0 0I1 0W1", "0F0 0F1 0I0 0I1 0W0 0W1"
    for weight, expected in (
        (1.0, [early, early, early]),
        (2.0, [late, early, early]),
        (3.0, [late, late, early]),
    ):
        problem = equal(2, m=2, hop=0.25, kinds=(1.0, 1.0, weight))
        found = [_refilled(problem, LATE_WEIGHTS, fill) or "" for fill in (1.0, 0.5, 0.0)]
        assert [text.splitlines()[0] for text in found] == expected


def test_memory_wants_weight_halves_earlier() -> None:
    one = equal(2, m=2, kept=1.0)
    assert _refilled(one, "0F0 0I0 0F1 0I1 0W0 0W1\n1F0 1I0 1F1 1I1 1W0 1W1") == (
        "0F0 0I0 0W0 0F1 0I1 0W1\n1F0 1I0 1W0 1F1 1I1 1W1"
    )
    assert _refilled(one, LATE_WEIGHTS) is None  # two forwards before any weight half


@given(st.data(), problems(), st.sampled_from(["zb-h1", "zb-h2", "1f1b"]), st.sampled_from(FILLS))
def test_everything_else_keeps_its_order(
    data: st.DataObject, problem: Problem, name: str, fill: float
) -> None:
    stages, count = problem.cut.num_stages, problem.micro_batches
    schedule = place(SCHEDULES[name](stages, stages, count), problem.placement)
    orders = problem.scorer.orders(schedule)
    made = refilled(problem, orders, fill)
    assert made is not None
    assert not math.isinf(problem.score(made).makespan)
    again = problem.schedule(made, name)
    check(again, problem.cut.graph)
    assert again.ascends
    for row, before in zip(again.computes, schedule.computes, strict=True):
        assert sorted(map(str, row)) == sorted(map(str, before))
        first, second = (
            [action for action in actions if action.kind is not Kind.BACKWARD_WEIGHT]
            for actions in (row, before)
        )
        assert first == second


@given(problems(limited=True), st.sampled_from(FILLS))
def test_it_keeps_to_the_limits(problem: Problem, fill: float) -> None:
    stages, count = problem.cut.num_stages, problem.micro_batches
    schedule = place(SCHEDULES["zb-h1"](stages, stages, count), problem.placement)
    made = refilled(problem, problem.scorer.orders(schedule), fill)
    if made is None:  # forwards alone are too much
        assert any(not math.isinf(limit) for limit in problem.limits)
    else:
        assert problem.fits(problem.score(made))
