from __future__ import annotations

from fxpipe.planner.search.joining import joined
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.space import Candidate
from fxpipe.schedules.check import check
from fxpipe.schedules.registry import SCHEDULES
from tests.unit.planner.search.problems import equal


def _candidate(problem: Problem, name: str) -> Candidate:
    stages, ranks = problem.cut.num_stages, len(problem.ranks)
    schedule = SCHEDULES[name](stages, ranks, problem.micro_batches)
    orders = problem.scorer.orders(schedule)
    return Candidate(name, problem, orders, problem.score(orders), named=True)


def test_halves_that_nobody_waits_between_become_whole() -> None:
    """On rank 0 nobody waits for the gradient of the inputs; on rank 1 rank 0 does."""
    found = joined(_candidate(equal(2, m=3), "zb-h1"))
    assert str(found.schedule) == "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2"
    assert found.score.makespan == 10.0
    assert found.name == "zb-h1, joined"
    assert not found.named
    check(found.schedule, found.problem.cut.graph)


def test_nothing_to_join_is_the_same() -> None:
    candidate = _candidate(equal(3), "1f1b")
    assert joined(candidate) is candidate


def test_what_is_late_stays_as_it_is() -> None:
    candidate = _candidate(equal(2, m=3), "zb-h1")
    assert joined(candidate, lambda: True) is candidate
