from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.ir.cost import StageCost
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.zb_h2 import zb_h2
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.metrics import device_span, device_span_bubble
from tests.unit.schedules.grids import picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/zb-h2_3_3_5.txt", picture(zb_h2(3, 3, 5)))


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 8])
def test_no_rank_is_idle_once_it_has_started(p: int, more: int) -> None:
    m = 2 * p - 1 + more
    timeline = thirds(zb_h2(p, p, m))
    assert device_span(timeline) == 3 * m
    assert device_span_bubble(timeline) == 0.0
    assert timeline.makespan == 3 * m + p - 1


def test_peaks_hold_at_every_size() -> None:
    for p in (*range(1, 9), 16):
        for m in range(2 * p - 1, 65, 11):
            costs = [StageCost(1, 2, 1, saved_bytes=100, weight_bytes=30)] * p
            peaks = simulate(lower(zb_h2(p, p, m), linear(p)), costs).peak_bytes
            assert peaks == tuple((2 * p - 2 * s - 1) * 100 + 2 * s * 30 for s in range(p))
