from __future__ import annotations

import pytest

from fxpipe.ir.action import Compute, Direction, Payload, Transfer, Update
from fxpipe.ir.timeline import Span, Timeline

SEND = Transfer(Direction.SEND, Payload.ACTIVATION, "x", 0, 1, 0)
STEP = Timeline(
    (
        Span(0, Compute.from_text("0F0"), 1.0, 2.0),
        Span(0, SEND, 2.0, 2.5),
        Span(1, Compute.from_text("1F0"), 2.5, 5.0),
    ),
    "run",
)


def test_times_count_from_the_first_start() -> None:
    assert STEP.makespan == 4.0
    assert [STEP.busy(rank) for rank in range(STEP.num_ranks)] == [1.0, 2.5]
    assert STEP.bubble == pytest.approx(1 - 3.5 / 8)
    assert str(STEP) == "Timeline (run): 2 ranks, 4000.00 ms, bubble 56.2%"


def test_transfers_are_no_computations() -> None:
    assert [str(span.action) for span in STEP.compute_spans(0)] == ["0F0"]


def test_nothing_has_no_length() -> None:
    empty = Timeline((), "run")
    assert (empty.num_ranks, empty.makespan, empty.bubble) == (0, 0.0, 0.0)


def test_updates_are_work_but_no_computations() -> None:
    spans = (Span(0, Compute.from_text("0B0"), 0.0, 2.0), Span(0, Update(0), 2.0, 3.0))
    timeline = Timeline(spans, "run")
    assert [str(span.action) for span in timeline.work_spans(0)] == ["0B0", "0U"]
    assert [str(span.action) for span in timeline.compute_spans(0)] == ["0B0"]
    assert (timeline.busy(0), timeline.bubble) == (3.0, 0.0)
    assert timeline.work_spans(1) == ()
