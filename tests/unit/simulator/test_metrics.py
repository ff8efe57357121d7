from __future__ import annotations

import pytest

from fxpipe.ir.cost import StageCost
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.metrics import (
    RankUse,
    bubble_fraction,
    bubble_ratio,
    critical_path,
    device_span,
    device_span_bubble,
    longest_chain,
    rank_use,
)

COSTS = [StageCost(1, 2), StageCost(3, 4)]
STEP = simulate(lower(one_f_one_b(2, 2, 2), linear(2)), COSTS)


def test_busy_and_idle_add_up_to_the_makespan() -> None:
    # rank 0: F0 F1 . . . . . . B0 ...; rank 1: . F0 F0 F0 B0 ...
    assert STEP.makespan == 17.0
    assert rank_use(STEP) == (RankUse(6.0, 11.0), RankUse(14.0, 3.0))


def test_the_two_conventions_of_a_bubble() -> None:
    assert bubble_fraction(STEP) == pytest.approx(14 / 34)
    assert bubble_ratio(STEP) == pytest.approx(14 / 20)


def test_an_empty_timeline_has_no_bubble() -> None:
    empty = Timeline((), "run")
    assert bubble_fraction(empty) == bubble_ratio(empty) == 0.0
    assert critical_path(empty, linear(1)) == ()


def test_the_critical_path_goes_through_the_slow_stage() -> None:
    path = critical_path(STEP, linear(2))
    assert [str(span.action) for span in path] == ["0F0", "1F0", "1B0", "1F1", "1B1", "0B1"]
    assert sum(span.duration for span in path) == STEP.makespan


def test_the_longest_chain_takes_the_slower_branch() -> None:
    value = TensorSpec((1,), "float32", requires_grad=True)
    graph = StageGraph(
        4,
        (),
        (
            Edge("a", 0, (1, 2), value),
            Edge("b", 1, (3,), value),
            Edge("c", 2, (3,), value),
        ),
    )
    costs = [StageCost(1, 1), StageCost(5, 5), StageCost(2, 2), StageCost(1, 1)]
    # Forward 0, 1 and 2 side by side, 3. Backward 3, then down a's readers: 2, 1, 0.
    assert longest_chain(graph, costs, backward=False) == 1 + 5 + 1
    assert longest_chain(graph, costs) == (1 + 5 + 1) + (1 + 2 + 5 + 1)


def test_ranks_that_start_late_have_a_shorter_span() -> None:
    timeline = simulate(
        lower(Schedule.from_text("0F0 0I0 0W0\n1F0 1I0 1W0"), linear(2)),
        [StageCost(1, 2, 1)] * 2,
    )
    # F0  .   .  I0 W0
    # .   F0  I0 W0 .
    assert (timeline.makespan, device_span(timeline)) == (5.0, 5.0)
    assert device_span_bubble(timeline) == bubble_fraction(timeline) == pytest.approx(0.4)
    late = simulate(lower(Schedule.from_text("0F0\n1F0"), linear(2)), [StageCost(1, 0)] * 2)
    assert (late.makespan, device_span(late)) == (2.0, 1.0)
    assert (bubble_fraction(late), device_span_bubble(late)) == (0.5, 0.0)
    assert device_span_bubble(Timeline((), "run")) == 0.0


def test_nobody_waits_for_a_weight_half() -> None:
    costs = [StageCost(1, 3, 2), StageCost(1, 5, 1)]
    assert longest_chain(linear(2), costs) == 2 + 5 + 3
    assert longest_chain(linear(2), costs, split=True) == 2 + 4 + 1 + 2


def test_a_recomputation_can_decide() -> None:
    schedule = Schedule.from_text("0F0 0R0 0B0\n1F0 1B0")
    costs = [StageCost(1, 1, recompute=9), StageCost(1, 1)]
    path = critical_path(simulate(lower(schedule, linear(2)), costs), linear(2))
    assert [str(span.action) for span in path] == ["0F0", "0R0", "0B0"]
