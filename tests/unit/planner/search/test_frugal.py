from __future__ import annotations

import pytest
from hypothesis import given

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.planner.search.frugal import excess, in_turn, most_frugal
from fxpipe.planner.search.listing import Rules, list_schedule
from fxpipe.planner.search.problem import Cut, Problem
from fxpipe.planner.search.space import Space
from fxpipe.schedules.check import check
from fxpipe.schedules.linear import linear
from tests.unit.planner.search.problems import problems

COST = StageCost(1.0, 2.0, 1.0, saved_bytes=10, input_bytes=2)


def _space(limit: float, stages: int = 4, *, recompute: bool = True) -> Space:
    cut = Cut((COST,) * stages, linear(stages))
    return Space((cut,), 2, 3, Cluster(2), (limit,) * 2, recompute=recompute, placements=("loop",))


@pytest.mark.parametrize(("recompute", "kept"), [(True, 12), (False, 20)])
def test_a_rank_keeps_one_stage_and_the_inputs_of_others(recompute: bool, kept: int) -> None:
    least = most_frugal(_space(15.0, recompute=recompute))
    assert least is not None
    assert least.score.peaks == (kept, kept)
    assert excess(least)[0] == kept - 15.0


@pytest.mark.parametrize(("limit", "recomputed"), [(12.0, {0, 1}), (20.0, set())])
def test_no_more_is_recomputed_than_the_limit_asks_for(limit: float, recomputed: set[int]) -> None:
    space = _space(limit)
    least = most_frugal(space)
    assert least is not None
    found = in_turn(space, least)
    assert found is not None
    assert found.fits
    assert found.problem.recomputed == recomputed
    check(found.schedule, found.problem.cut.graph)
    assert found.schedule.num_micro_batches == 3


def test_nothing_keeps_to_less() -> None:
    space = _space(11.0)
    least = most_frugal(space)
    assert least is not None
    assert in_turn(space, least) is None


def test_two_copies_are_left_to_others() -> None:
    both = Placement((0, 1), ((1, 0),), (0, 1, 0))
    cut = Cut((COST,) * 2, linear(2))
    space = Space((cut,), 2, 3, Cluster(2), (5.0,) * 2, placements=(both,))
    least = most_frugal(space)
    assert least is not None
    assert not least.problem.placement.replicas


@given(problems())
def test_no_list_keeps_less(problem: Problem) -> None:
    orders = list_schedule(problem, Rules([0.0] * len(problem.scorer.tables.seconds)))
    if orders is not None and not problem.recomputed:
        ranks = len(problem.ranks)
        space = Space(
            (problem.cut,),
            ranks,
            problem.micro_batches,
            Cluster(ranks),
            problem.limits,
            recompute=False,
            placements=(problem.placement,),
        )
        least = most_frugal(space)
        assert least is not None
        kept = problem.score(orders).peaks
        assert excess(least)[0] <= max(
            peak - limit for peak, limit in zip(kept, problem.limits, strict=True)
        )
