from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.ir.action import Transfer
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.insert import with_updates
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.blockers import Blockers
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.metrics import critical_path
from tests.unit.ir.strategies import stage_costs, stage_graphs

COST = StageCost(1, 2, 1)


def _path(timeline: Timeline, graph: StageGraph) -> list[str]:
    return [str(span.action) for span in critical_path(timeline, graph)]


def _bytes(size: int) -> TensorSpec:
    return TensorSpec((size,), "uint8", requires_grad=True)


def test_what_has_a_long_way_decides_not_what_ended_last() -> None:
    """2F0 needs a value of rank 0 that ended at 1 and comes at 6, and one of its own rank's of 3."""
    graph = StageGraph(3, (), (Edge("far", 0, (2,), _bytes(1)), Edge("near", 1, (2,), _bytes(1))))
    schedule = Schedule.from_text("0F0\n1F0 2F0")
    costs = [StageCost(1, 0), StageCost(3, 0), StageCost(1, 0)]
    timeline = simulate(lower(schedule, graph), costs, Cluster(2, latency=5.0), graph)
    assert _path(timeline, graph) == ["0F0", "2F0"]


def test_a_busy_link_is_held_up_by_what_went_before() -> None:
    """The small value waits for the large one, made by a computation that ended long before."""
    graph = StageGraph(
        3, (), (Edge("large", 0, (2,), _bytes(9)), Edge("small", 1, (2,), _bytes(1)))
    )
    schedule = Schedule.from_text("0F0 1F0\n2F0")
    costs = [StageCost(2, 0), StageCost(1, 0), StageCost(1, 0)]
    timeline = simulate(lower(schedule, graph), costs, Cluster(2, 0.0, 1.0), graph)
    assert timeline.makespan == 13.0
    assert _path(timeline, graph) == ["0F0", "2F0"]


def test_a_cell_hands_on_at_its_end() -> None:
    text = "0F0 (0F1;0B0)OVERLAP_F_B 0B1\n1F0 1B0 1F1 1B1"
    timeline = simulate(lower(Schedule.from_text(text), linear(2)), [COST] * 2)
    assert _path(timeline, linear(2)) == ["0F0", "1F0", "1B0", "0F1", "0B0", "1F1", "1B1", "0B1"]


def test_updates_are_on_the_way() -> None:
    schedule = with_updates(Schedule.from_text("0F0 0B0\n1F0 1B0"))
    costs = [StageCost(1, 1, update=0.5), StageCost(1, 1, update=9)]
    timeline = simulate(lower(schedule, linear(2)), costs)
    assert _path(timeline, linear(2)) == ["0F0", "1F0", "1B0", "1U"]


def test_nothing_holds_up_the_first() -> None:
    timeline = simulate(lower(Schedule.from_text("0F0\n1F0"), linear(2)), [COST] * 2)
    blockers = Blockers(timeline, linear(2))
    first, second = timeline.compute_spans(0)[0], timeline.compute_spans(1)[0]
    assert (blockers.of(second), blockers.of(first)) == (first, None)
    assert Blockers(Timeline((), "run"), linear(1)).last() is None


@given(
    st.data(),
    stage_graphs(stages=4),
    st.sampled_from(sorted(SCHEDULES)),
    st.sampled_from([2, 4]),
    st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.25, 16.0), (0.0, 3.0)]),
    st.sampled_from([(1.0,), (1.0, 0.75, 0.5)]),
)
def test_no_time_passes_on_the_critical_path_but_on_links(
    data: st.DataObject,
    graph: StageGraph,
    name: str,
    ranks: int,
    link: tuple[float, float],
    speeds: tuple[float, ...],
) -> None:
    costs = [
        StageCost(c.forward, c.backward, c.weight, update=1.0) for c in data.draw(stage_costs(4))
    ]
    schedule = with_updates(SCHEDULES[name](4, ranks, data.draw(st.integers(1, 5))))
    cluster = Cluster(ranks, *link, speeds=speeds)
    timeline = simulate(lower(schedule, graph), costs, cluster, graph)
    path = critical_path(timeline, graph)
    ends = [span.end for span in timeline.spans if not isinstance(span.action, Transfer)]
    assert path[0].start == 0.0
    assert path[-1].end == max(ends)
    for before, after in itertools.pairwise(path):
        if before.rank == after.rank or cluster.bandwidth == 0:
            hop = 0.0 if before.rank == after.rank else cluster.latency
            assert after.start == pytest.approx(before.end + hop)
        else:
            assert after.start >= before.end + cluster.latency - 1e-9
