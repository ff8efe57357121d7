from __future__ import annotations

import json

import pytest

from fxpipe.schedules.gpipe import gpipe
from fxpipe.simulator.unit import unit_timeline
from fxpipe.viz.render import render
from tests.unit.viz.examples import GRAPH, NAMES, PLAN

STEP = unit_timeline(gpipe(2, 2, 2))


def test_timelines() -> None:
    assert render(STEP) == "F0  F1  .   .   B0  B1\n.   F0  F1  B0  B1  ."
    assert render(STEP, "svg").startswith("<svg")
    assert "traceEvents" in json.loads(render(STEP, "chrome"))


def test_stage_graphs() -> None:
    assert "conv_1" in render(GRAPH, plan=PLAN)
    assert "up.cat" in render(GRAPH, "svg", plan=PLAN, names=NAMES)
    assert render(GRAPH, "dot", plan=PLAN, names=NAMES).startswith("digraph")


def test_a_form_that_a_value_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="a Timeline has no form 'dot'"):
        render(STEP, "dot")
    with pytest.raises(ValueError, match="a StageGraph has no form 'chrome'"):
        render(GRAPH, "chrome")


def test_measured_with_predicted() -> None:
    assert ">predicted<" in render(STEP, "svg", predicted=STEP)
    assert "predicted" in render(STEP, "chrome", predicted=STEP)
    with pytest.raises(ValueError, match="no form 'text' with a prediction"):
        render(STEP, predicted=STEP)
    with pytest.raises(ValueError, match="a StageGraph has no form 'svg' with a prediction"):
        render(GRAPH, "svg", predicted=STEP)
