from __future__ import annotations

import math

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.planner.search.problem import Cut
from fxpipe.planner.search.space import Candidate, Space
from fxpipe.schedules.linear import linear
from fxpipe.schedules.registry import SCHEDULES
from tests.unit.planner.search.problems import equal

MINE = Placement((0, 0, 1, 1))


def _space(**more: object) -> Space:
    costs = [StageCost(1, 2, 1, saved_bytes=4, input_bytes=n) for n in (0, 1, 4, 2)]
    cuts = tuple(Cut(tuple(costs[:n]), linear(n)) for n in (2, 3, 4))
    return Space(cuts, 2, 4, Cluster(2), (math.inf,) * 2, placements=("loop", "fold", MINE), **more)  # type: ignore[arg-type]


def test_ways_to_place_a_cut() -> None:
    found = [[where.ranks for where in _space().placements_of(cut)] for cut in _space().cuts]
    assert found == [[(0, 1)], [(0, 1, 0)], [(0, 1, 0, 1), (0, 1, 1, 0), (0, 0, 1, 1)]]
    assert len(list(_space().problems())) == 5


def test_a_problem_is_made_once() -> None:
    space = _space()
    first, second = (space.problem(space.cuts[0], Placement((0, 1))) for _ in range(2))
    assert first is second
    assert space.smaller(first, 4) is first
    assert space.smaller(first, 2).micro_batches == 2


def test_what_recomputation_saves() -> None:
    cut = _space().cuts[-1]
    assert _space().saves(range(4), cut) == [1, 3]
    assert _space(recompute=False).saves(range(4), cut) == []


def test_time_first_then_less_to_do() -> None:
    problem = equal(2, m=2)
    found = {}
    for name in ("gpipe", "1f1b", "zb-h1"):
        orders = problem.scorer.orders(SCHEDULES[name](2, 2, 2))
        found[name] = Candidate(name, problem, orders, problem.score(orders))
    assert sorted(found, key=lambda name: found[name].rank)[0] == "zb-h1"
    whole = found["1f1b"]
    halves = Candidate("halves", problem, found["zb-h1"].orders, whole.score)
    assert whole.rank < halves.rank
