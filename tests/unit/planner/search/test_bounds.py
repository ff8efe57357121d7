from __future__ import annotations

import math

import pytest
from hypothesis import given

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.planner.search.bounds import lower_bound
from fxpipe.planner.search.listing import Rules, list_schedule
from fxpipe.planner.search.problem import Cut, Problem
from fxpipe.schedules.linear import linear
from tests.unit.planner.search.problems import equal, problems


@pytest.mark.parametrize(("v", "bound"), [(1, 55.0), (2, 51.5), (4, 49.75)])
@pytest.mark.parametrize("fold", [False, True])
def test_equal_ranks_with_room(v: int, bound: float, fold: bool) -> None:
    """``m (F + I + W) + (p - 1) F / v`` for v >= 2; for v = 1 the tail of input halves counts."""
    assert lower_bound(equal(8, v, 16, fold=fold)) == bound


def test_without_split_backwards_it_is_what_one_f_one_b_takes() -> None:
    assert lower_bound(equal(8, 1, 16), split=False) == 69.0


def test_memory_for_one_micro_batch_is_one_after_another() -> None:
    """Forward and back; the activation is kept on rank 0 all the time, weight half included."""
    assert lower_bound(equal(4, 1, 5, kept=1)) == 5 * (4 + 4 + 1)


def test_a_hop_lengthens_head_and_chain() -> None:
    assert lower_bound(equal(4, 1, 1, hop=0.5)) == 4 + 4 + 1 + 6 * 0.5


def test_recomputation_is_work_and_saves_memory() -> None:
    usual = equal(2, 1, 8, kept=1, input_bytes=1)
    again = equal(2, 1, 8, input_bytes=1, recomputed=frozenset({0, 1}))
    assert lower_bound(again) == 1 + 8 * 4
    assert lower_bound(usual, recompute=True) < lower_bound(usual)


@given(problems(limited=True))
def test_no_list_is_shorter(problem: Problem) -> None:
    for split in (True, False):
        urgency = [0.0] * len(problem.scorer.tables.seconds)
        orders = list_schedule(problem, Rules(urgency, split=split))
        assert orders is not None
        score = problem.score(orders)
        assert score.makespan >= lower_bound(problem, split=split) - 1e-9


@pytest.mark.parametrize(("speeds", "bound"), [((1.0, 0.5), 36.0), ((1.0, 0.6, 0.3), 30.0)])
def test_ranks_that_slow_each_other_down_share_the_work(
    speeds: tuple[float, ...], bound: float
) -> None:
    """Two ranks of 6 micro-batches, 3 s each: 36 s of work, and as many at once as are fastest."""
    cut = Cut((StageCost(1.0, 2.0, 1.0),) * 2, linear(2))
    cluster = Cluster(2, speeds=speeds)
    problem = Problem(cut, Placement.loop(2), 6, cluster, (math.inf,) * 2)
    assert lower_bound(problem) == pytest.approx(bound)
