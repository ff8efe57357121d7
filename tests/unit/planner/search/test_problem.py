from __future__ import annotations

import math

import pytest

from fxpipe.ir.action import Kind
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.planner.search.problem import Cut, Problem
from fxpipe.schedules.insert import without_cells
from fxpipe.schedules.linear import linear
from fxpipe.schedules.registry import SCHEDULES
from tests.unit.planner.search.problems import equal


def test_numbers() -> None:
    problem = equal(2, m=3)
    number = problem.number(Kind.BACKWARD_INPUT, 1, 2)
    assert str(problem.scorer.action(number)) == "1I2"
    assert problem.row(Kind.BACKWARD_INPUT, 1) == number - 2


def test_ranks_that_slow_each_other_down_are_simulated() -> None:
    cut = Cut((StageCost(1, 2, 1),) * 2, linear(2))
    schedule = SCHEDULES["1f1b"](2, 2, 4)
    fast, slow = (
        Problem(cut, schedule.placement, 4, Cluster(2, speeds=speeds), [math.inf] * 2)
        for speeds in ((1.0,), (1.0, 0.5))
    )
    orders = fast.scorer.orders(schedule)
    assert fast.score(orders).makespan == 15.0
    assert slow.score(orders).makespan == 24.0  # never more than one rank's worth of work at a time
    backwards = [list(reversed(row)) for row in orders]
    assert slow.score(backwards).makespan == math.inf


def test_a_second_copy_of_the_weights_takes_room() -> None:
    schedule = without_cells(SCHEDULES["dualpipe"](2, 2, 4))
    cut = Cut((StageCost(1, 2, 1, 1, parameter_bytes=10),) * 2, linear(2))
    problem = Problem(cut, schedule.placement, 4, Cluster(2), [100, 50])
    assert problem.limits == (80, 30)
    assert problem.schedule(problem.scorer.orders(schedule), "again").replicas == 2


@pytest.mark.parametrize(("kept", "fits"), [(1, False), (2, True)])
def test_fitting(kept: float, fits: bool) -> None:
    problem = equal(2, kept=kept)
    score = problem.score(problem.scorer.orders(SCHEDULES["1f1b"](2, 2, 4)))
    assert problem.fits(score) is fits
