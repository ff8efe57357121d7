"""Laws of schedules and of the search, for any stage graph, costs, ranks and micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fxpipe
from fxpipe.errors import ScheduleError, UnsupportedCountsError
from fxpipe.ir.cost import StageCost
from fxpipe.ir.stage import StageGraph
from fxpipe.planner.search.bounds import lower_bound
from fxpipe.planner.search.problem import Cut, Problem
from fxpipe.schedules.check import check
from fxpipe.schedules.insert import without_cells
from fxpipe.schedules.links import check_programs
from fxpipe.schedules.memory import check_memory
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.metrics import longest_chain
from tests.unit.ir.strategies import stage_costs, stage_graphs

TRAINING = sorted(set(SCHEDULES) - {"forward"})
LINKS = st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.25, 16.0)])


@st.composite
def models(draw: st.DrawFn) -> tuple[StageGraph, list[StageCost], int, int]:
    """A stage graph with its costs, ranks and micro-batches."""
    ranks = draw(st.integers(1, 4))
    graph = draw(stage_graphs(stages=draw(st.integers(ranks, 3 * ranks))))
    return graph, draw(stage_costs(graph.num_stages)), ranks, draw(st.integers(1, 8))


@given(models(), st.sampled_from(TRAINING), LINKS)
def test_every_schedule_is_legal_free_of_deadlock_and_no_shorter_than_the_bounds(
    model: tuple[StageGraph, list[StageCost], int, int], name: str, link: tuple[float, float]
) -> None:
    graph, costs, ranks, count = model
    try:
        schedule = SCHEDULES[name](graph.num_stages, ranks, count)
    except UnsupportedCountsError:
        assume(False)
    check(schedule, graph)
    programs = fxpipe.lower(schedule, graph)
    check_programs(programs)
    cluster = fxpipe.Cluster(ranks, *link)
    timeline = fxpipe.simulate(programs, costs, cluster, graph)
    problem = Problem(
        Cut(tuple(costs), graph), schedule.placement, count, cluster, timeline.peak_bytes
    )
    split = schedule.splits_backward
    bounds = [
        lower_bound(problem, split=split),
        longest_chain(graph, costs, split=split),
        max(timeline.busy(rank) for rank in range(ranks)),
    ]
    assert timeline.makespan >= max(bounds) * (1 - 1e-9)


@given(models(), st.sampled_from(["gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"]))
def test_memory_is_as_the_closed_form_says(
    model: tuple[StageGraph, list[StageCost], int, int], name: str
) -> None:
    """One stage per rank: activations of the fullest moment, whatever the costs and the graph."""
    graph, costs, _, count = model
    stages = graph.num_stages
    schedule = SCHEDULES[name](stages, stages, count)
    timeline = fxpipe.simulate(fxpipe.lower(schedule, graph), costs, graph=graph)
    kept = [
        {
            "gpipe": count,
            "1f1b": min(count, stages - s),
            "eager-1f1b": min(count, 2 * (stages - s) - 1),
            "zb-h1": min(count, stages),
            "zb-h2": min(count, 2 * stages - 1),
        }[name]
        for s in range(stages)
    ]
    forms = [many * cost.saved_bytes for many, cost in zip(kept, costs, strict=True)]
    if name.startswith("zb"):  # weight halves wait as long as they may: no rank keeps more
        assert all(peak <= form for peak, form in zip(timeline.peak_bytes, forms, strict=True))
    else:
        assert list(timeline.peak_bytes) == forms


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
