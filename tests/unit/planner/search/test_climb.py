from __future__ import annotations

from random import Random

from hypothesis import given

from fxpipe.planner.search.climb import Climb
from fxpipe.planner.search.listing import Rules, list_schedule
from fxpipe.planner.search.problem import Problem
from fxpipe.schedules.check import check
from fxpipe.schedules.registry import SCHEDULES
from tests.unit.planner.search.exact import shortest
from tests.unit.planner.search.problems import equal, problems


@given(problems(limited=True))
def test_every_best_is_legal_fits_and_is_no_worse(problem: Problem) -> None:
    orders = list_schedule(problem, Rules([0.0] * len(problem.scorer.tables.seconds)))
    assert orders is not None
    start = problem.score(orders)
    climb = Climb(problem, orders, Random(1), 40)
    while not climb.over:
        before = climb.score.makespan
        better = climb.step()
        assert better == (climb.score.makespan < before)
    assert climb.score == problem.score(climb.best)
    assert climb.score.makespan <= start.makespan
    assert problem.fits(climb.score)
    schedule = problem.schedule(climb.best, "")
    check(schedule, problem.cut.graph)
    assert schedule.ascends


def test_from_the_worst_order_to_the_best() -> None:
    """One micro-batch after another is legal; two ranks can overlap them."""
    problem = equal(2, m=3, kept=2)
    rows = [
        [problem.scorer.number(action) for action in row]
        for row in SCHEDULES["zb-h1"](2, 2, 3).computes
    ]
    serial = [sorted(row, key=lambda number: (number % 3, number)) for row in rows]
    assert problem.score(serial).makespan > shortest(problem)
    climb = Climb(problem, serial, Random(0), 500)
    while not climb.over:
        climb.step()
    assert climb.score.makespan == shortest(problem)


def test_the_same_seed_is_the_same_walk() -> None:
    problem = equal(3, 2, 4, kinds=(3, 4, 2), kept=2, fold=True)
    orders = problem.scorer.orders(SCHEDULES["v-min"](6, 3, 4))
    climbs = [Climb(problem, orders, Random(7), 200) for _ in range(2)]
    for climb in climbs:
        while not climb.over:
            climb.step()
    assert climbs[0].best == climbs[1].best
