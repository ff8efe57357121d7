"""Problems for tests: equal stages on ranks, and anything at all."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.planner.search.problem import Cut, Problem
from fxpipe.schedules.linear import linear
from tests.unit.ir.strategies import stage_costs, stage_graphs


def equal(
    ranks: int,
    v: int = 1,
    m: int = 4,
    *,
    kinds: tuple[float, float, float] = (1.0, 1.0, 1.0),
    kept: float = math.inf,
    hop: float = 0.0,
    fold: bool = False,
    recomputed: frozenset[int] = frozenset(),
    input_bytes: int = 0,
) -> Problem:
    """v stages per rank, F, I and W of a whole rank, limits in activations of it (4 v bytes)."""
    forward, inputs, weight = (seconds / v for seconds in kinds)
    cost = StageCost(forward, inputs + weight, weight, saved_bytes=4, input_bytes=input_bytes)
    placement = Placement.fold(ranks, v) if fold else Placement.loop(ranks, v)
    cut = Cut((cost,) * (ranks * v), linear(ranks * v))
    limits = [kept * 4 * v] * ranks
    return Problem(cut, placement, m, Cluster(ranks, latency=hop), limits, recomputed)


@st.composite
def problems(draw: st.DrawFn, limited: bool = False) -> Problem:
    """Any stage graph, costs, placement and links; if `limited`, with a bit more room than the least."""
    ranks = draw(st.integers(1, 3))
    stages = draw(st.integers(ranks, 6))
    graph = draw(stage_graphs(stages=stages))
    costs = draw(stage_costs(stages))
    homes = [*range(ranks), *draw(st.lists(st.integers(0, ranks - 1), min_size=6, max_size=6))]
    placement = Placement(tuple(draw(st.permutations(homes[:stages]))))
    cluster = Cluster(ranks, *draw(st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.25, 16.0)])))
    limits = [math.inf] * ranks
    if limited:
        least = [sum(costs[s].saved_bytes for s in placement.stages_of(r)) for r in range(ranks)]
        limits = [bytes_ + draw(st.integers(0, 12)) for bytes_ in least]
    return Problem(Cut(tuple(costs), graph), placement, draw(st.integers(1, 4)), cluster, limits)
