from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.ir.plan import Placement
from fxpipe.schedules.zb_v import zb_v
from fxpipe.simulator.metrics import device_span, device_span_bubble
from tests.unit.schedules.grids import peaks, picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/zb-v_4_2_4.txt", picture(zb_v(4, 2, 4)))


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 7])
def test_no_rank_is_idle_once_it_has_started(p: int, more: int) -> None:
    m = 2 * p - 1 + more
    schedule = zb_v(2 * p, p, m)
    timeline = thirds(schedule)
    assert schedule.placement == Placement.fold(p)
    assert device_span(timeline) == 6 * m
    assert device_span_bubble(timeline) == 0.0
    assert timeline.makespan == 6 * m + p - 1


def test_peaks_hold_at_every_size() -> None:
    for p in (*range(1, 9), 16):
        for m in range(2 * p - 1, 65, 13):
            assert peaks(zb_v(2 * p, p, m)) == (float(p),) * p


def test_four_stages_per_rank_are_two_chunks_of_two() -> None:
    assert zb_v(8, 2, 5).placement.ranks == (0, 0, 1, 1, 1, 1, 0, 0)
