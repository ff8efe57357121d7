from __future__ import annotations

from fxpipe.ir.action import Compute
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.depend import Result
from fxpipe.schedules.layout import Layout, key_text, title_of
from fxpipe.schedules.linear import linear

LAYOUT = Layout(Schedule.from_text("0F0 (0F1;0R0)OVERLAP_F_B 0U 0B0 0F1\n1F0 7F0"), linear(2))


def test_makers_and_positions() -> None:
    assert LAYOUT.makers[Result.ACTIVATIONS, 0, 0] == (0, 2)
    assert [LAYOUT.position(0, at) for at in range(5)] == [0, 1, 1, 3, 4]
    assert [(rank, at, str(a)) for rank, at, a in LAYOUT.entries()][3:] == [
        (0, 3, "0B0"),
        (0, 4, "0F1"),
        (1, 0, "1F0"),
        (1, 1, "7F0"),
    ]


def test_what_is_made_again() -> None:
    again = Compute.from_text("0F1")
    assert LAYOUT.repeats == [(0, 4, again, (Result.OUTPUT, 0, 1))]


def test_a_recomputed_micro_batch_needs_its_activations() -> None:
    assert list(LAYOUT.needs(Compute.from_text("0B0"))) == [
        (Result.OUTPUT, 0, 0),
        (Result.ACTIVATIONS, 0, 0),
        (Result.INPUT_GRAD, 1, 0),
    ]
    assert (Result.ACTIVATIONS, 0, 1) not in list(LAYOUT.needs(Compute.from_text("0B1")))


def test_a_stage_that_is_not_there_needs_nothing() -> None:
    assert list(LAYOUT.needs(Compute.from_text("7F0"))) == []


def test_words() -> None:
    assert key_text((Result.INPUT_GRAD, 2, 3)) == "input gradient of stage 2, micro-batch 3"
    assert title_of(Schedule(())) == "the schedule"
    assert title_of(Schedule((), "mine")) == "schedule 'mine'"
