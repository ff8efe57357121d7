from __future__ import annotations

import pytest

from fxpipe.errors import ScheduleError, UnsupportedCountsError
from fxpipe.schedules.counts import require_counts, require_even


def test_stages_need_not_divide_evenly() -> None:
    require_counts(5, 3, 1)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ((0, 1, 1), "at least one of its stages, got 0"),
        ((1, -1, 1), "at least one of its ranks, got -1"),
        ((1, 1, 0), "at least one of its micro-batches, got 0"),
        ((2, 3, 1), "3 ranks for 2 stages: a rank would have nothing to do"),
    ],
)
def test_what_is_wrong_is_said(at: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        require_counts(*at)


def test_an_odd_number_of_ranks_is_refused_with_what_to_do() -> None:
    require_even("mirrored", 4, "other")
    with pytest.raises(UnsupportedCountsError, match=r"'mirrored'.*got 5: use 4 or 6, or 'other'"):
        require_even("mirrored", 5, "other")
    with pytest.raises(UnsupportedCountsError, match="got 1: use 2, or"):
        require_even("mirrored", 1, "other")
