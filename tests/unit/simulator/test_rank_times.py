from __future__ import annotations

import pytest

from fxpipe.ir.action import Update
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.rank_times import RankTimes, rank_times
from fxpipe.simulator.unit import unit_timeline
from tests.unit.simulator.rows import timeline_of


def test_waits_for_others_are_told_from_transfers_and_from_overhead() -> None:
    timeline = timeline_of("0F0@1-2 0B0@8-10", "1F0@2.5-4 1B0@4.25-7")
    assert rank_times(timeline, linear(2)) == (
        RankTimes(busy=3.0, waiting=5.0, transfer=1.0, overhead=0.0),
        RankTimes(busy=4.25, waiting=1.0 + 3.0, transfer=0.5, overhead=0.25),
    )


def test_a_transfer_that_is_over_in_time_holds_nobody_up() -> None:
    timeline = timeline_of("0F0@0-1", "1F1@0-4 1F0@4-5")
    assert rank_times(timeline, linear(2))[1].transfer == 0.0


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_with_free_links_there_are_no_transfers(name: str) -> None:
    schedule = SCHEDULES[name](8, 4, 8)
    timeline = unit_timeline(schedule)
    for rank, times in enumerate(rank_times(timeline, linear(8), schedule)):
        assert times.transfer == pytest.approx(0.0)
        assert times.overhead == pytest.approx(0.0)
        assert times.total == pytest.approx(timeline.makespan)
        assert times.busy == timeline.busy(rank)


def test_latency_is_transfer() -> None:
    schedule = SCHEDULES["forward"](3, 3, 1)
    costs = [StageCost(1.0, 2.0)] * 3
    timeline = simulate(lower(schedule, linear(3)), costs, Cluster(3, latency=0.5))
    times = rank_times(timeline, linear(3))
    assert [one.transfer for one in times] == [0.0, 0.5, 0.5]
    assert [one.waiting for one in times] == [3.0, 1.0 + 1.5, 2.5]
    assert times[0].bubble == pytest.approx(0.75)


def test_an_empty_step_has_no_times() -> None:
    assert rank_times(Timeline((), "run"), linear(1)) == ()
    assert RankTimes(0.0, 0.0, 0.0, 0.0).bubble == 0.0


def test_a_rank_that_is_done_waits_for_the_others() -> None:
    spans = timeline_of("0F0@0-1").spans
    timeline = Timeline((*spans, Span(1, spans[0].action, 1.0, 3.0)), "run")
    assert rank_times(timeline, linear(1))[0].waiting == 2.0


def test_updates_are_work() -> None:
    spans = timeline_of("0F0@0-1 0B0@1-3").spans
    timeline = Timeline((*spans, Span(0, Update(0), 4.0, 6.0)), "run")
    assert rank_times(timeline, linear(1)) == (RankTimes(5.0, 0.0, 0.0, 1.0),)
