from __future__ import annotations

import pytest
from hypothesis import given

from fxpipe.ir.schedule import Schedule
from tests.unit.ir.strategies import counts


def test_counts_and_placement() -> None:
    schedule = Schedule.from_text("0F0, 2F0, 0F1\n1F0 1B0", "mine")
    assert (schedule.num_ranks, schedule.num_stages, schedule.num_micro_batches) == (2, 3, 2)
    assert schedule.placement.ranks == (0, 1, 0)
    assert schedule.has_backward
    assert not Schedule.from_text("0F0").has_backward


@given(counts())
def test_text_returns_the_schedule(at: tuple[int, int, int]) -> None:
    from fxpipe.schedules.one_f_one_b import one_f_one_b

    schedule = one_f_one_b(*at)
    assert Schedule.from_text(str(schedule), "1f1b") == schedule


def test_a_word_that_is_no_action_is_refused() -> None:
    with pytest.raises(ValueError, match="'bubble' is no action"):
        Schedule.from_text("0F0 bubble 0B0")
