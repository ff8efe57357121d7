from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.ir.plan import Placement
from fxpipe.schedules.v_half import v_half
from tests.unit.schedules.grids import peaks, picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/v-half_6_3_5.txt", picture(v_half(6, 3, 5)))


def test_peaks_hold_at_every_size() -> None:
    for p in (*range(1, 9), 16):
        for m in (1, 2, p, 2 * p, 64):
            schedule = v_half(2 * p, p, m)
            assert schedule.placement == Placement.fold(p)
            assert max(peaks(schedule)) <= (p + 2) // 2
            if m >= 2 * p:
                assert max(peaks(schedule)) == (p + 2) // 2


@pytest.mark.parametrize("p", [2, 4, 6, 8, 12])
def test_idle_time_as_a_share_of_that_of_1f1b(p: int) -> None:
    m = 4 * p
    idle = thirds(v_half(2 * p, p, m)).makespan - 6 * m
    assert 0.15 < idle / (6 * (p - 1)) <= 0.58
