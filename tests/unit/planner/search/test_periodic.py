from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fxpipe.planner.search.periodic import Circle, Periodic, Starts
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.ways import Ways
from tests.unit.planner.search.problems import equal, problems


def test_a_circle_has_the_gaps_of_its_picture() -> None:
    circle = Circle(10.0)
    assert circle.starts(8.0, 10.0) == [8.0]
    assert circle.starts(8.0, 10.5) == []
    circle.take(2.0, 3.0)
    circle.take(28.0, 3.0)
    assert circle.starts(0.0, 1.0) == [1.0, 5.0, 7.0]
    assert circle.starts(6.0, 1.0) == [6.0, 7.0, 11.0, 15.0]
    assert circle.starts(6.0, 2.0) == [6.0, 15.0]
    assert circle.starts(6.0, 4.0) == []
    circle.take(5.0, 0.0)
    assert circle.starts(15.0, 3.0) == [15.0]


def _work(problem: Problem) -> float:
    ranks = [0.0 for _ in problem.ranks]
    for stage, cost in enumerate(problem.cut.costs):
        ranks[problem.placement.rank_of(stage)] += cost.forward + cost.backward
    return max(ranks)


def _repeated(problem: Problem, starts: Starts, period: float) -> list[list[int]]:
    rows: list[list[tuple[float, int]]] = [[] for _ in problem.ranks]
    for number, start in starts.items():
        for m in range(problem.micro_batches):
            rows[problem.rank_of(number)].append((start + m * period, number + m))
    return [[number for _, number in sorted(row)] for row in rows]


@given(problems(), st.floats(1.0, 3.0), st.booleans(), st.data())
def test_micro_batches_can_follow_each_other(
    problem: Problem, pace: float, split: bool, data: st.DataObject
) -> None:
    """Nothing before what it waits for; whatever turns meet, no rank does two things at once."""
    ways, period = Ways(problem, split=split), pace * _work(problem)
    later = {number: data.draw(st.integers(0, 3)) for number in ways.order}
    starts = Periodic(problem, ways, period).starts(later)
    assume(starts is not None)
    assert starts is not None
    seconds = problem.scorer.tables.seconds
    for number, start in starts.items():
        for source, hop in ways.before[number]:
            assert start >= starts[source] + seconds[source] + hop - 1e-6
    for rank in problem.ranks:
        own = sorted(
            (start % period, seconds[number])
            for number, start in starts.items()
            if problem.rank_of(number) == rank
        )
        ends = [*(start for start, _ in own[1:]), own[0][0] + period]
        assert all(start + long <= end + 1e-6 for (start, long), end in zip(own, ends, strict=True))


@given(problems(limited=True), st.sampled_from([1.0, 1.25, 2.0]), st.booleans())
def test_what_is_kept_is_what_many_micro_batches_keep(
    problem: Problem, pace: float, split: bool
) -> None:
    many = Problem(problem.cut, problem.placement, 40, problem.cluster, problem.limits)
    assume(min(many.limits) > 0)
    period = pace * _work(many)
    periodic = Periodic(many, Ways(many, split=split), period)
    starts = periodic.starts({})
    assume(starts is not None and max(starts.values()) < 20 * period)
    assert starts is not None
    peaks = many.score(_repeated(many, starts, period)).peaks
    shares = [peak / limit for peak, limit in zip(peaks, many.limits, strict=True)]
    assert max(shares) == pytest.approx(periodic.kept(starts))


def test_a_search_finds_starts_that_keep_less() -> None:
    """Room for 3 of 4 activations; F, I, W = 3, 4, 2, and every tenth second idle."""
    problem = equal(4, 2, 8, kinds=(3.0, 4.0, 2.0), kept=3, fold=True)
    periodic = Periodic(problem, Ways(problem), 9.9)
    first, found = periodic.starts({}), periodic.search(Random(0), 80)
    assert first is not None
    assert found is not None
    assert periodic.kept(first) > 1.0 >= periodic.kept(found)


def test_too_short_a_period_holds_nothing() -> None:
    problem = equal(2)
    assert Periodic(problem, Ways(problem), 2.5).search(Random(0), 10) is None
