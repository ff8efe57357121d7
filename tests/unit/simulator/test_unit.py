from __future__ import annotations

import pytest

from fxpipe.errors import DeadlockError
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.simulator.unit import unit_timeline


def test_unit_costs() -> None:
    timeline = unit_timeline(Schedule.from_text("0F0 0I0 0W0\n1F0 1B0"), backward=2.0)
    computes = [*timeline.compute_spans(0), *timeline.compute_spans(1)]
    assert [(str(s.action), s.start, s.end) for s in computes] == [
        ("0F0", 0.0, 1.0),
        ("0I0", 4.0, 5.0),
        ("0W0", 5.0, 6.0),
        ("1F0", 1.0, 2.0),
        ("1B0", 2.0, 4.0),
    ]
    assert timeline.peak_bytes == (1, 1)


def test_another_graph_changes_the_times() -> None:
    apart = StageGraph(2, (), ())
    assert unit_timeline(Schedule.from_text("0F0\n1F0")).makespan == 2.0
    assert unit_timeline(Schedule.from_text("0F0\n1F0"), apart).makespan == 1.0


def test_the_schedule_is_checked() -> None:
    value = TensorSpec((1,), "float32", requires_grad=True)
    graph = StageGraph(3, (), (Edge("a", 0, (1,), value), Edge("b", 1, (2,), value)))
    with pytest.raises(DeadlockError):
        unit_timeline(Schedule.from_text("2F0 0F0\n1F0"), graph)
