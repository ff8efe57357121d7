from __future__ import annotations

import pytest

from fxpipe.errors import DeadlockError
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.depend import Result
from fxpipe.schedules.layout import Layout
from fxpipe.schedules.linear import linear
from fxpipe.schedules.progress import finish


def _finish(text: str, stages: int, *given: Result) -> None:
    finish(Layout(Schedule.from_text(text), linear(stages)), given)


def test_ranks_in_any_order() -> None:
    _finish("2F0 2B0\n0F0 0B0\n1F0 1B0", 3)


def test_given_results_are_not_waited_for() -> None:
    _finish("0B0\n1B0", 2, Result.OUTPUT)


def test_a_circle_of_three() -> None:
    with pytest.raises(DeadlockError) as caught:
        _finish("3F0 0F0\n1F0 4F0\n2F0 5F0", 6)
    lines = str(caught.value).splitlines()
    assert [line.split(", micro-batch")[0] for line in lines] == [
        "the schedule deadlocks:",
        "  - rank 0 waits at position 0 to run 3F0 for the output of stage 2",
        "  - rank 2 waits at position 0 to run 2F0 for the output of stage 1",
        "  - rank 1 waits at position 0 to run 1F0 for the output of stage 0",
    ]
