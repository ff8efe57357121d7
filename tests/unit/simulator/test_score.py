from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.errors import ScheduleError
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.metrics import device_span
from fxpipe.simulator.score import Scorer
from tests.unit.ir.strategies import stage_costs, stage_graphs


def _opened(schedule: Schedule) -> Schedule:
    return Schedule(schedule.computes, schedule.name, schedule.replicas)


@given(
    st.data(),
    stage_graphs(stages=4),
    st.sampled_from(sorted(set(SCHEDULES) - {"forward"})),
    st.sampled_from([2, 4]),
    st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.25, 16.0)]),
)
def test_it_says_what_the_simulator_says(
    data: st.DataObject, graph: StageGraph, name: str, ranks: int, link: tuple[float, float]
) -> None:
    m = data.draw(st.integers(2, 5))
    schedule = _opened(SCHEDULES[name](4, ranks, m))
    costs, cluster = data.draw(stage_costs(4)), Cluster(ranks, *link)
    timeline = simulate(lower(schedule, graph), costs, cluster, graph)

    scorer = Scorer(graph, costs, schedule.placement, m, cluster)
    orders = scorer.orders(schedule)
    score = scorer.score(orders)
    assert score.makespan == pytest.approx(max(s.end for s in timeline.spans))
    assert score.peaks == timeline.peak_bytes
    if cluster.latency == 0:
        assert score.span == pytest.approx(device_span(timeline))
    ends = scorer.ends(orders)
    for rank in range(ranks):
        for span in timeline.compute_spans(rank):
            assert ends[scorer.number(span.action)] == pytest.approx(span.end)  # type: ignore[arg-type]
    assert scorer.schedule(orders, name).ranks == schedule.ranks


@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_numbers_and_actions(stages: int, m: int, data: st.DataObject) -> None:
    placement = SCHEDULES["1f1b"](stages, 1, m).placement
    scorer = Scorer(linear(stages), [StageCost(1, 2)] * stages, placement, m)
    number = data.draw(st.integers(0, len(scorer.tables.seconds) - 1))
    assert scorer.number(scorer.action(number)) == number


def test_ranks_that_wait_for_one_another_never_end() -> None:
    schedule = Schedule.from_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0")
    scorer = Scorer(linear(2), [StageCost(1, 2, saved_bytes=1)] * 2, schedule.placement, 2)
    score = scorer.score(scorer.orders(schedule))
    assert score.makespan == score.span == math.inf
    assert scorer.ends(scorer.orders(schedule)).count(-1.0) == len(scorer.tables.seconds) - 1


def test_recomputed_stages_keep_their_inputs() -> None:
    schedule = Schedule.from_text("0F0 0F1 0R0 0B0 0R1 0B1")
    cost = StageCost(1, 2, saved_bytes=10, input_bytes=3, recompute=0.5)
    scorer = Scorer(linear(1), [cost], schedule.placement, 2, recomputed={0})
    score = scorer.score(scorer.orders(schedule))
    assert (score.makespan, score.peaks) == (7.0, (13,))
    assert simulate(lower(schedule, linear(1)), [cost]).peak_bytes == (13,)


def test_what_it_cannot_score_is_refused() -> None:
    scorer = Scorer(linear(2), [StageCost(1, 2)] * 2, Placement((0, 1)), 3)
    with pytest.raises(ScheduleError, match="the schedule has none: use simulate"):
        scorer.orders(SCHEDULES["forward"](2, 2, 3))
    for counts in ((2, 2, 4), (3, 2, 3)):
        told = f"of {counts[0]} stages and {counts[2]} micro-batches, for a scorer of 2 and 3"
        with pytest.raises(ScheduleError, match=told):
            scorer.orders(SCHEDULES["1f1b"](*counts))
