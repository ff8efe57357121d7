"""Laws of the search, for any stage graph, costs, ranks and micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fxpipe
from fxpipe.errors import ScheduleError, UnsupportedCountsError
from fxpipe.ir.cost import StageCost
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.check import check
from fxpipe.schedules.insert import without_cells
from fxpipe.schedules.links import check_programs
from fxpipe.schedules.memory import check_memory
from fxpipe.schedules.registry import SCHEDULES
from tests.unit.ir.strategies import stage_costs, stage_graphs

TRAINING = sorted(set(SCHEDULES) - {"forward"})
LINKS = st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.25, 16.0)])


@st.composite
def models(draw: st.DrawFn) -> tuple[StageGraph, list[StageCost], int, int]:
    """A stage graph with its costs, ranks and micro-batches."""
    ranks = draw(st.integers(1, 4))
    graph = draw(stage_graphs(stages=draw(st.integers(ranks, 3 * ranks))))
    return graph, draw(stage_costs(graph.num_stages)), ranks, draw(st.integers(1, 8))


@given(models(), LINKS, st.floats(0.3, 1.2), st.booleans(), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_the_search_is_never_worse_than_any_schedule_with_a_name(
    model: tuple[StageGraph, list[StageCost], int, int],
    link: tuple[float, float],
    share: float,
    split: bool,
    seed: int,
) -> None:
    graph, costs, ranks, count = model
    cluster = fxpipe.Cluster(ranks, *link)
    limit = int(share * count * max(cost.saved_bytes for cost in costs))
    names = []
    for name in TRAINING:
        try:
            schedule = without_cells(SCHEDULES[name](graph.num_stages, ranks, count))
        except UnsupportedCountsError:
            continue
        timeline = fxpipe.simulate(fxpipe.lower(schedule, graph), costs, cluster, graph)
        if schedule.replicas == 1 and max(timeline.peak_bytes) <= limit:
            if split or not schedule.splits_backward:
                names.append(timeline.makespan)
    try:
        found = fxpipe.search_schedule(
            costs,
            limit,
            ranks=ranks,
            micro_batches=count,
            graph=graph,
            cluster=cluster,
            split_backward=split,
            steps=5,
            seconds=0.5,
            seed=seed,
            progress=False,
        )
    except ScheduleError:
        assert not names
        return
    check(found.schedule, found.graph)
    programs = fxpipe.lower(found.schedule, found.graph)
    check_programs(programs)
    check_memory(programs, found.costs, [limit] * ranks)
    timeline = fxpipe.simulate(programs, found.costs, cluster, found.graph)
    assert timeline.makespan == pytest.approx(found.makespan)
    assert found.makespan <= min(names, default=found.makespan) * (1 + 1e-9)
    assert found.bound <= found.makespan * (1 + 1e-9)
