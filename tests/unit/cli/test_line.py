from __future__ import annotations

import pytest

from fxpipe.cli.example import load_example
from fxpipe.cli.line import make_line, predict, split_names
from fxpipe.errors import DeadlockError
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.linear import linear


def test_names_with_commas() -> None:
    assert split_names("a, b.1,,c@2 ") == ["a", "b.1", "c@2"]
    assert split_names(" , ") is None


def test_the_line_is_that_of_a_micro_batch() -> None:
    example = load_example("tests.unit.cli.models:with_args", None, 2, 0, evaluation=False)
    line = make_line(example, stages=2, chunks=2, costs="measure")
    assert line.capture.batch_size == 4
    assert line.costs.source == "measure"
    assert line.graph.num_stages == line.plan.num_stages == 2
    assert sum(cost.parameter_bytes for cost in line.stage_costs()) == 4 * (8 * 8 + 8) * 4
    assert len(line.table(Placement.loop(2)).splitlines()) == 2 + 2 + 2


def test_a_prediction_checks_its_schedule() -> None:
    costs = [StageCost(1, 2)] * 2
    assert predict(linear(2), costs, "gpipe", Cluster(2), 3).makespan == (3 + 1) * 3
    stuck = Schedule.from_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0")
    with pytest.raises(DeadlockError):
        predict(linear(2), costs, stuck, Cluster(2), 2)
