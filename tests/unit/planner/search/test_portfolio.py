from __future__ import annotations

import math
from random import Random

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.planner.search.portfolio import Portfolio
from fxpipe.planner.search.problem import Cut
from fxpipe.planner.search.space import Space
from fxpipe.schedules.linear import linear


def _portfolio(limit: float, micro_batches: int, input_bytes: int = 0) -> tuple[Portfolio, int]:
    """What a search of four ranks with two stages each found, and how many steps it told of."""
    cost = StageCost(1.5, 3.0, 1.0, saved_bytes=4, input_bytes=input_bytes)
    space = Space((Cut((cost,) * 8, linear(8)),), 4, micro_batches, Cluster(4), (limit,) * 4)
    portfolio = Portfolio(space, 1000.0, 50, Random(0))
    steps = 0

    def step(total: int | None = None) -> None:
        nonlocal steps
        steps += 1

    portfolio.search(step)
    return portfolio, steps


def test_the_first_that_fits_is_the_best() -> None:
    portfolio, steps = _portfolio(limit=24.0, micro_batches=8)
    found = portfolio.found
    fits = [one.fits for one in found]
    assert fits == sorted(fits, reverse=True)
    assert portfolio.best is not None
    assert portfolio.best.score.makespan == found[0].score.makespan
    assert steps > len(found)


def test_at_the_bound_it_stops() -> None:
    portfolio, steps = _portfolio(limit=math.inf, micro_batches=8)
    assert portfolio.best is not None
    assert portfolio.best.score.makespan == portfolio.bound == 76.5
    assert steps < 100


def test_ideas_are_rehearsed_with_fewer_micro_batches() -> None:
    portfolio, _ = _portfolio(limit=24.0, micro_batches=12)
    assert {one.problem.micro_batches for one in portfolio.found} == {12}
    assert any(one.name in ("list", "v-pattern") for one in portfolio.found)


def test_recomputation_is_tried_where_memory_is_short() -> None:
    assert any(one.problem.recomputed for one in _portfolio(8.0, 4, input_bytes=1)[0].found)
    assert not any(one.problem.recomputed for one in _portfolio(8.0, 4)[0].found)
