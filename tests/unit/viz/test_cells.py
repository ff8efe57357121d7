from __future__ import annotations

from fxpipe.ir.action import Compute
from fxpipe.ir.timeline import Timeline
from fxpipe.viz.cells import Cell, cells, has_several, name_of, shortest, stages_of
from tests.unit.simulator.rows import timeline_of

STEP = timeline_of("0F0@1-2 2F0@3-5", "1F0@2-3")


def test_a_cell_shows_what_is_computed_at_its_middle() -> None:
    first, second, other = (Compute.from_text(text) for text in ("0F0", "2F0", "1F0"))
    assert cells(STEP, 1.0) == [
        [Cell(first), Cell(None), Cell(second, 1), Cell(second, 1, goes_on=True)],
        [Cell(None), Cell(other), Cell(None), Cell(None)],
    ]


def test_the_shortest_takes_some_time() -> None:
    assert shortest(timeline_of("0F0@1-1 0F1@1-3")) == 2.0
    assert shortest(Timeline((), "run")) == 0.0
    assert cells(Timeline((), "run"), 1.0) == []


def test_names_tell_stages_where_there_are_several() -> None:
    assert has_several(STEP)
    assert stages_of(STEP.compute_spans(0)) == [0, 2]
    assert name_of(Compute.from_text("2F7"), True) == "2F7"
    assert name_of(Compute.from_text("2F7"), False) == "F7"
