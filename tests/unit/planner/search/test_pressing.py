from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from fxpipe.planner.search.periodic import Periodic
from fxpipe.planner.search.pressing import pressed
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.ways import Ways
from fxpipe.schedules.check import check
from tests.unit.planner.search.problems import equal, problems


def _longest(problem: Problem) -> float:
    return sum(cost.forward + cost.backward for cost in problem.cut.costs)


@given(problems(limited=True), st.floats(0.3, 1.5), st.booleans())
def test_it_takes_no_longer_and_keeps_no_more_than_what_is_repeated(
    problem: Problem, pace: float, split: bool
) -> None:
    period, ways = pace * _longest(problem), Ways(problem, split=split)
    periodic = Periodic(problem, ways, period)
    starts = periodic.starts({})
    assume(starts is not None)
    assert starts is not None
    orders = pressed(problem, ways, starts, period)
    schedule = problem.schedule(orders, "pressed")
    check(schedule, problem.cut.graph)
    assert schedule.ascends
    score, seconds = problem.score(orders), problem.scorer.tables.seconds
    if not problem.cluster.bandwidth:  # links that are busy are the simulator's business
        last = max(start + seconds[number] for number, start in starts.items())
        assert score.makespan <= (problem.micro_batches - 1) * period + last + 1e-6
    if periodic.kept(starts) <= 1.0:
        assert problem.fits(score)


def test_the_start_is_pressed_together() -> None:
    """One rank, a period with a second to spare: no gap is left but the order is the same."""
    problem = equal(1, m=3)
    ways = Ways(problem)
    starts = Periodic(problem, ways, 4.0).starts({})
    assert starts is not None
    orders = pressed(problem, ways, starts, 4.0)
    assert str(problem.schedule(orders, "")) == "0F0 0I0 0W0 0F1 0I1 0W1 0F2 0I2 0W2"
    assert problem.score(orders).makespan == 9.0


def test_first_micro_batches_come_as_early_as_memory_allows() -> None:
    """Two ranks, a micro-batch every 9 s: room for three is room for three forwards at once."""
    rows = []
    for kept in (1, 3):
        problem = equal(2, m=4, kept=kept)
        ways = Ways(problem)
        starts = Periodic(problem, ways, 9.0).starts({})
        assert starts is not None
        rows.append(str(problem.schedule(pressed(problem, ways, starts, 9.0), "")).splitlines()[0])
    assert rows[0].startswith("0F0 0I0 0W0 0F1")
    assert rows[1].startswith("0F0 0F1 0F2 ")
