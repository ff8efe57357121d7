from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.planner.search.ideas import deep, timely
from fxpipe.planner.search.listing import Rules, list_schedule
from fxpipe.planner.search.problem import Problem
from fxpipe.schedules.check import check
from fxpipe.schedules.links import check_programs
from fxpipe.schedules.lower import lower
from tests.unit.planner.search.problems import equal, problems


@given(
    problems(limited=True),
    st.booleans(),
    st.sampled_from([1.0, 0.5, 0.0]),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from([deep, timely]),
)
def test_lists_are_legal_and_keep_to_the_limits(
    problem: Problem,
    split: bool,
    fill: float,
    rivals: bool,
    patience: float,
    pace: float,
    urgency: object,
) -> None:
    assert callable(urgency)
    rules = Rules(urgency(problem), split, fill, rivals, patience, pace)
    orders = list_schedule(problem, rules)
    assert orders is not None  # there is room for one micro-batch, and so there is a way
    assert problem.fits(problem.score(orders))
    schedule = problem.schedule(orders, "list")
    check(schedule, problem.cut.graph)
    check_programs(lower(schedule, problem.cut.graph))
    assert schedule.ascends


def test_the_shape_of_one() -> None:
    problem = equal(2, m=2)
    orders = list_schedule(problem, Rules(deep(problem)))
    assert orders is not None
    assert str(problem.schedule(orders, "")) == ("0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1")


def test_recomputations_come_right_before_they_are_needed() -> None:
    problem = equal(2, m=3, kept=1.5, input_bytes=1, recomputed=frozenset({0, 1}))
    orders = list_schedule(problem, Rules(deep(problem)))
    assert orders is not None
    assert problem.fits(problem.score(orders))
    schedule = problem.schedule(orders, "")
    check(schedule, problem.cut.graph)
    assert str(schedule).startswith("0F0 0F1")


@pytest.mark.parametrize("v", [1, 2])
def test_no_room_for_a_micro_batch_is_no_way(v: int) -> None:
    assert list_schedule(equal(2, v, kept=0.5), Rules([0.0] * 2 * v * 4 * 5)) is None


@pytest.mark.parametrize(
    ("v", "kept", "fold", "makespan"),
    [(1, 12, False, 55.0), (2, 12, True, 51.5), (4, 12, True, 49.75), (4, 8, False, 49.75)],
)
def test_with_room_lists_meet_the_bound(v: int, kept: int, fold: bool, makespan: float) -> None:
    problem = equal(8, v, 16, kept=kept, fold=fold)
    fills = (1.0, 0.5, 0.0)
    made = [list_schedule(problem, Rules(deep(problem), fill=fill)) for fill in fills]
    assert min(problem.score(orders).makespan for orders in made if orders) == makespan
