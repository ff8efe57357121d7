from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.schedules.interleaved_zb import interleaved_zb
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.zb_h1 import zb_h1
from fxpipe.simulator.engine import simulate
from tests.unit.schedules.grids import picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/zb-h1_3_3_5.txt", picture(zb_h1(3, 3, 5)))


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 8])
def test_a_third_of_the_idle_time_of_1f1b(p: int, more: int) -> None:
    assert thirds(zb_h1(p, p, p + more)).makespan == 3 * (p + more) + p - 1


def test_peaks_hold_at_every_size() -> None:
    for p in (*range(1, 9), 16):
        for m in range(p, 65, 11):
            costs = [StageCost(1, 2, 1, saved_bytes=100, weight_bytes=30)] * p
            peaks = simulate(lower(zb_h1(p, p, m), linear(p)), costs).peak_bytes
            assert peaks == tuple((p - s) * 100 + s * 30 for s in range(p))


def test_it_is_interleaved_zero_bubble_with_one_stage_per_rank() -> None:
    assert zb_h1(4, 4, 8).ranks == interleaved_zb(4, 4, 8).ranks


def test_stages_keep_their_order_on_any_placement() -> None:
    apart = zb_h1(4, 4, 6)
    folded = zb_h1(4, 2, 6, Placement.fold(2))
    assert folded.placement == Placement.fold(2)
    for stage in range(4):
        (row,) = [r for r in folded.computes if any(a.stage == stage for a in r)]
        assert tuple(a for a in row if a.stage == stage) == apart.computes[stage]
