from __future__ import annotations

import gc
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.errors import DeadlockError, ScheduleError
from fxpipe.ir.action import Compute, Direction, Payload, Transfer, Update
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.program import RankProgram
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.depend import MAKES, needs
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.metrics import critical_path, longest_chain
from tests.unit.ir.strategies import stage_costs, stage_graphs


def _step(schedule: Schedule, costs: list[StageCost], cluster: Cluster | None = None) -> Timeline:
    return simulate(lower(schedule, linear(len(costs))), costs, cluster)


@pytest.mark.parametrize(("m", "makespan"), [(8, 33.0), (16, 57.0)])
@pytest.mark.parametrize("generator", [gpipe, one_f_one_b])
def test_four_equal_stages(generator: object, m: int, makespan: float) -> None:
    """F = I = W = 1, p = 4: the published values of GPipe and 1F1B."""
    timeline = _step(generator(4, 4, m), [StageCost(1, 2, 1, saved_bytes=1)] * 4)  # type: ignore[operator]
    assert timeline.makespan == makespan
    assert timeline.bubble == pytest.approx(0.2727 if m == 8 else 0.1579, abs=5e-5)
    assert timeline.peak_bytes == ((m,) * 4 if generator is gpipe else (4, 3, 2, 1))


def test_heterogeneous_stages() -> None:
    forward, inputs, weight = (1, 2, 1.5, 1), (1, 2, 1.5, 1.25), (1, 1, 1, 0.5)
    costs = [StageCost(f, i + w, w) for f, i, w in zip(forward, inputs, weight, strict=True)]
    assert _step(gpipe(4, 4, 6), costs).makespan == 39.75
    assert _step(one_f_one_b(4, 4, 6), costs).makespan == 36.75


def test_two_ranks_that_halve_each_other_gain_nothing() -> None:
    shared = Cluster(2, speeds=(1.0, 0.5))
    timeline = _step(one_f_one_b(2, 2, 4), [StageCost(1, 1)] * 2, shared)
    assert timeline.makespan == pytest.approx(16.0)
    assert _step(one_f_one_b(2, 1, 4), [StageCost(1, 1)] * 2).makespan == 16.0


def test_a_transfer_takes_latency_and_its_bytes() -> None:
    graph = StageGraph(2, (), (Edge("x", 0, (1,), TensorSpec((100,), "uint8")),))
    programs = lower(SCHEDULES["forward"](2, 2, 3), graph)
    timeline = simulate(programs, [StageCost(1, 0)] * 2, Cluster(2, 0.25, 50.0), graph)
    # The link is busy for 2 s per value: it, not the ranks, sets the pace.
    starts = [span.start for span in timeline.compute_spans(1)]
    assert starts == [3.25, 5.25, 7.25]
    sends = [s for s in timeline.spans if s.rank == 0 and isinstance(s.action, Transfer)]
    assert [(s.start, s.end) for s in sends] == [(1.0, 3.25), (3.0, 5.25), (5.0, 7.25)]
    waits = [s for s in timeline.spans if s.rank == 1 and isinstance(s.action, Transfer)]
    assert [(s.start, s.end) for s in waits] == [(0.0, 3.25), (4.25, 5.25), (6.25, 7.25)]


def test_links_of_other_pairs_do_not_wait() -> None:
    wide = TensorSpec((100,), "uint8")
    graph = StageGraph(3, (), (Edge("x", 0, (1,), wide), Edge("y", 0, (2,), wide)))
    programs = lower(SCHEDULES["forward"](3, 3, 1), graph)
    timeline = simulate(programs, [StageCost(1, 0)] * 3, Cluster(3, 0.0, 100.0), graph)
    assert [timeline.compute_spans(rank)[0].start for rank in range(3)] == [0.0, 2.0, 2.0]


def test_updates_take_no_time() -> None:
    program = RankProgram(0, (Compute.from_text("0F0"), Update(0), Compute.from_text("0F1")))
    timeline = simulate([program], [StageCost(2, 0)])
    assert [str(span.action) for span in timeline.spans] == ["0F0", "0F1"]
    assert timeline.makespan == 4.0


def test_split_backwards_cost_their_halves() -> None:
    timeline = _step(Schedule.from_text("0F0 0I0 0W0"), [StageCost(1, 5, weight=2)])
    assert [span.duration for span in timeline.spans] == [1.0, 3.0, 2.0]


def test_a_receive_without_send_is_a_deadlock() -> None:
    receive = Transfer(Direction.RECV, Payload.ACTIVATION, "x", 0, 1, 0)
    programs = [
        RankProgram(0, (Compute.from_text("0F0"),)),
        RankProgram(1, (receive, Compute.from_text("1F0"))),
    ]
    with pytest.raises(DeadlockError, match=r"rank 1 waits for recv\[a:x:0→1\]0"):
        simulate(programs, [StageCost(1, 0)] * 2)


def test_missing_costs_and_ranks_are_refused() -> None:
    programs = lower(gpipe(3, 3, 1), linear(3))
    with pytest.raises(ScheduleError, match="no cost for stage 2: costs of 2 stages given"):
        simulate(programs, [StageCost(1, 1)] * 2)
    with pytest.raises(ScheduleError, match="costs of 4 stages for programs of 3"):
        simulate(programs, [StageCost(1, 1)] * 4)
    with pytest.raises(ScheduleError, match="3 rank programs for 2 ranks"):
        simulate(programs, [StageCost(1, 1)] * 3, Cluster(2))


@given(st.data(), stage_graphs(stages=6), st.sampled_from(sorted(SCHEDULES)), st.integers(1, 6))
def test_laws_of_every_timeline(
    data: st.DataObject, graph: StageGraph, name: str, ranks: int
) -> None:
    ranks += ranks % 2 if name in ("dualpipe", "chimera") else 0
    costs = data.draw(stage_costs(6))
    micro_batches = data.draw(st.integers(1, 6))
    schedule = SCHEDULES[name](6, ranks, micro_batches)
    speeds = data.draw(st.sampled_from([(1.0,), (1.0, 0.75, 0.5)]))
    cluster = Cluster(ranks, data.draw(st.sampled_from([0.0, 0.5])), 0.0, None, speeds)
    timeline = simulate(lower(schedule, graph), costs, cluster, graph)
    slack = 1e-9

    backward = schedule.has_backward
    chain = longest_chain(graph, costs, backward=backward, split=True)
    assert timeline.makespan >= chain - slack
    work = [sum(costs[a.stage].seconds(a.kind) for a in row) for row in schedule.computes]
    assert timeline.makespan >= max(work) - slack
    ended = {}
    for rank, actions in enumerate(schedule.computes):
        spans = timeline.compute_spans(rank)
        assert tuple(span.action for span in spans) == actions
        for before, after in itertools.pairwise(spans):
            assert before.end <= after.start + slack
        for span in spans:
            action = span.action
            assert isinstance(action, Compute)
            ended.update(
                {(r, action.stage, action.micro_batch): span.end for r in MAKES[action.kind]}
            )
    for rank in range(ranks):
        for span in timeline.compute_spans(rank):
            action = span.action
            assert isinstance(action, Compute)
            for result, stage in needs(action, graph):
                assert ended[result, stage, action.micro_batch] <= span.start + slack
    if cluster.latency == 0 and not name.startswith("dualpipe"):
        # (What waits for a cell waits for its end, not for the action in it that makes the result.)
        path = critical_path(timeline, graph)
        assert sum(span.duration for span in path) == pytest.approx(timeline.makespan)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_left_as_it_was(is_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if is_on else gc.disable)()
        _step(gpipe(2, 2, 2), [StageCost(1, 1)] * 2)
        assert gc.isenabled() == is_on
        with pytest.raises(DeadlockError):
            simulate(
                [RankProgram(0, (Transfer(Direction.RECV, Payload.ACTIVATION, "x", 1, 0, 0),))], []
            )
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if before else gc.disable)()
