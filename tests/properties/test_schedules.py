"""Laws of every schedule generator: any stage graph, costs, ranks, placements, micro-batches, links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fxpipe
from fxpipe.errors import ScheduleError, UnsupportedCountsError
from fxpipe.ir.cost import StageCost, with_reads
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.planner.search.bounds import lower_bound
from fxpipe.planner.search.problem import Cut, Problem
from fxpipe.schedules.check import check
from fxpipe.schedules.forms import FORMS
from fxpipe.schedules.insert import with_recomputes, with_updates
from fxpipe.schedules.linear import linear
from fxpipe.schedules.links import check_programs
from fxpipe.schedules.memory import check_memory
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.schedules.starts import place
from fxpipe.simulator.metrics import longest_chain
from tests.unit.ir.strategies import stage_costs, stage_graphs

NAMES = sorted(SCHEDULES)
MIRRORED = {"chimera", "dualpipe"}
"""Schedules whose two directions mirror each other: they need an even number of ranks."""
ONE_COPY = sorted(set(SCHEDULES) - MIRRORED)
LINKS = st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.25, 16.0), (3.0, 4.0)])


@dataclass(frozen=True)
class Job:
    """What a schedule is made for."""

    graph: StageGraph
    costs: Sequence[StageCost]
    ranks: int
    micro_batches: int
    cluster: fxpipe.Cluster

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.graph.num_stages, self.ranks, self.micro_batches


@st.composite
def jobs(draw: st.DrawFn, *, even: bool = False) -> Job:
    """Up to four stages per rank (as many on each, if `even`), with any edges between them."""
    ranks = draw(st.integers(1, 6))
    most = min(4 * ranks, 12)
    stages = draw(st.integers(ranks, most))
    stages -= stages % ranks if even else 0
    graph = draw(stage_graphs(stages=stages))
    cluster = fxpipe.Cluster(ranks, *draw(LINKS))
    return Job(graph, draw(stage_costs(stages)), ranks, draw(st.integers(1, 13)), cluster)


@st.composite
def placements(draw: st.DrawFn, stages: int, ranks: int) -> Placement:
    """Any, as long as every rank has a stage."""
    ranks_of = list(range(ranks))
    ranks_of += draw(
        st.lists(st.integers(0, ranks - 1), min_size=stages - ranks, max_size=stages - ranks)
    )
    return Placement(tuple(draw(st.permutations(ranks_of))))


def made(name: str, job: Job) -> Schedule:
    """The schedule; where it is refused, it must be by its name, with others that are not."""
    if name in MIRRORED and job.ranks % 2:
        with pytest.raises(UnsupportedCountsError) as refused:
            SCHEDULES[name](*job.counts)
        text = str(refused.value)
        assert text.startswith(f"schedule {name!r} needs an even number of ranks, got {job.ranks}")
        name = text.split("'")[3]
    return SCHEDULES[name](*job.counts)


def legal(schedule: Schedule, job: Job) -> Timeline:
    """The step, after all checks: complete, no deadlock whatever links do, no less than any bound."""
    check(schedule, job.graph)
    assert schedule.ascends
    programs = fxpipe.lower(schedule, job.graph)
    check_programs(programs)
    timeline = fxpipe.simulate(programs, job.costs, job.cluster, job.graph)
    check_memory(programs, job.costs, timeline.peak_bytes)
    busiest = max(timeline.busy(rank) for rank in range(job.ranks))
    bounds = [busiest]
    if schedule.has_backward:
        bounds += _bounds(schedule, job, timeline)
    assert timeline.makespan >= max(bounds) * (1 - 1e-9)
    return timeline


def _bounds(schedule: Schedule, job: Job, timeline: Timeline) -> list[float]:
    split = schedule.splits_backward
    problem = Problem(
        Cut(tuple(job.costs), job.graph),
        schedule.placement,
        job.micro_batches,
        job.cluster,
        timeline.peak_bytes,
        {action.stage for row in schedule.computes for action in row if action.kind == "R"},
    )
    return [lower_bound(problem, split=split), longest_chain(job.graph, job.costs, split=split)]


def several(
    fast: int, slow: int, *drawn: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A law at some examples of what is drawn, and at more where there is time."""

    def twice(law: Callable[..., None]) -> Callable[..., None]:
        many = pytest.param(slow, marks=pytest.mark.slow, id="many")

        @pytest.mark.parametrize("examples", [pytest.param(fast, id="some"), many])
        def test(examples: int) -> None:
            settings(max_examples=examples)(given(*drawn)(law))()

        test.__doc__ = law.__doc__
        return test

    return twice


@several(100, 1500, jobs(), st.sampled_from(NAMES))
def test_every_generator(job: Job, name: str) -> None:
    """Legal, free of deadlock, and no shorter than the bounds, on any stage graph."""
    legal(made(name, job), job)


@several(50, 600, st.data(), jobs(), st.sampled_from(ONE_COPY))
def test_every_placement(data: st.DataObject, job: Job, name: str) -> None:
    """Orders made for one stage per rank, on fewer ranks in any way."""
    stages, ranks, count = job.counts
    placement = data.draw(placements(stages, ranks))
    schedule = place(SCHEDULES[name](stages, stages, count), placement)
    assert schedule.placement.ranks == placement.ranks
    legal(schedule, job)


@several(40, 400, st.data(), jobs(), st.sampled_from(sorted(set(ONE_COPY) - {"forward"})))
def test_recomputations_and_updates_fit_into_every_schedule(
    data: st.DataObject, job: Job, name: str
) -> None:
    stages = data.draw(st.sets(st.integers(0, job.graph.num_stages - 1)))
    costs = [  # what is read is kept in any case
        replace(cost, saved_bytes=cost.saved_bytes + cost.input_bytes)
        for cost in with_reads(job.costs, job.graph)
    ]
    job = replace(job, costs=costs)
    plain = SCHEDULES[name](*job.counts)
    again = with_updates(with_recomputes(plain, stages))
    before, after = legal(plain, job), legal(again, job)
    assert all(less <= more for less, more in zip(after.peak_bytes, before.peak_bytes, strict=True))


@several(100, 1000, jobs(even=True), st.sampled_from(NAMES), st.integers(1, 9))
def test_memory_is_as_the_closed_form_says(job: Job, name: str, saved: int) -> None:
    """Whatever the seconds, the links and the values that cross.

    Stages of one rank keep as much as one another here; where each has a rank of its own, its own bytes.
    """
    stages, ranks, count = job.counts
    assume(not (name in MIRRORED and ranks % 2))
    v = stages // ranks
    alone = v == 1 and name not in MIRRORED
    costs = [
        StageCost(c.forward, c.backward, c.weight, c.saved_bytes if alone else saved)
        for c in job.costs
    ]
    programs = fxpipe.lower(SCHEDULES[name](*job.counts), job.graph)
    timeline = fxpipe.simulate(programs, costs, job.cluster, job.graph)
    form = FORMS[name]
    for rank, kept in enumerate(timeline.peak_bytes):
        expected = form.peak(ranks, v, count, rank)
        if expected is not None:
            most = costs[rank].saved_bytes * v * expected
            assert kept <= most + 1e-6
            assert form.is_bound or kept >= most - 1e-6


@several(30, 400, jobs(), st.sampled_from(["zb-h1", "zb-h2"]), st.floats(0, 1))
def test_zero_bubble_keeps_what_weight_halves_need(job: Job, name: str, share: float) -> None:
    """Stage s of p: ``(p - s) A + s A_W``, or ``(2 p - 2 s - 1) A + 2 s A_W``, each stage its own A."""
    p, count = job.graph.num_stages, job.micro_batches
    assume(count >= (p if name == "zb-h1" else 2 * p - 1))
    costs = [
        StageCost(c.forward, c.backward, c.weight, c.saved_bytes, 0, int(c.saved_bytes * share))
        for c in job.costs
    ]
    timeline = fxpipe.simulate(fxpipe.lower(SCHEDULES[name](p, p, count), job.graph), costs)
    for s, (kept, cost) in enumerate(zip(timeline.peak_bytes, costs, strict=True)):
        whole, late = (p - s, s) if name == "zb-h1" else (2 * p - 2 * s - 1, 2 * s)
        assert kept == whole * cost.saved_bytes + late * cost.kept_for_weight


@several(
    100,
    2000,
    st.sampled_from(["gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1"]),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.tuples(*[st.integers(1, 9).map(float)] * 3),
)
def test_time_is_as_the_closed_form_says(
    name: str, p: int, v: int, rounds: int, kinds: tuple[float, float, float]
) -> None:
    """Equal ranks and free links. F, I and W are a stage's here."""
    forward, inputs, weight = kinds
    if name == "zb-h1":
        weight = min(kinds)
    v = v if name in ("interleaved-1f1b", "looped-bfs") else 1
    count = rounds * p
    cost = StageCost(forward, inputs + weight, weight)
    schedule = SCHEDULES[name](p * v, p, count)
    timeline = fxpipe.simulate(fxpipe.lower(schedule, linear(p * v)), [cost] * (p * v))
    spared = 2 * weight if name == "zb-h1" else 0.0
    idle = (p - 1) * (forward + inputs + weight - spared)
    assert timeline.makespan == count * v * (forward + inputs + weight) + idle


@given(
    st.sampled_from(NAMES),
    st.tuples(st.integers(-1, 3), st.integers(-1, 3), st.integers(-1, 2)),
)
def test_counts_that_nothing_can_have_are_refused_by_name(
    name: str, counts: tuple[int, int, int]
) -> None:
    stages, ranks, _ = counts
    words = [
        word for word, n in zip(("stages", "ranks", "micro-batches"), counts, strict=True) if n < 1
    ]
    if not words and ranks > stages:
        words = [f"{ranks} ranks for {stages} stages"]
    assume(words)
    with pytest.raises(ScheduleError, match=words[0]):
        SCHEDULES[name](*counts)
