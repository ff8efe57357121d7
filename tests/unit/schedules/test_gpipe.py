from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.ir.plan import Placement
from fxpipe.schedules.gpipe import gpipe
from fxpipe.simulator.metrics import bubble_fraction, bubble_ratio
from fxpipe.simulator.unit import unit_timeline
from fxpipe.viz.text import grid

COUNTS = [(p, m) for p in (1, 2, 3, 4, 7) for m in (1, 2, 3, 8, 16)]


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/gpipe_3_3_4.txt", grid(unit_timeline(gpipe(3, 3, 4))) + "\n")


def test_grid_with_two_stages_per_rank(golden: Callable[[str, str], None]) -> None:
    golden("schedules/gpipe_4_2_4.txt", grid(unit_timeline(gpipe(4, 2, 4))) + "\n")


@pytest.mark.parametrize(("p", "m"), COUNTS)
def test_closed_forms(p: int, m: int) -> None:
    timeline = unit_timeline(gpipe(p, p, m), backward=2.0)
    assert timeline.makespan == (m + p - 1) * 3
    assert bubble_fraction(timeline) == pytest.approx((p - 1) / (m + p - 1))
    assert bubble_ratio(timeline) == pytest.approx((p - 1) / m)
    assert timeline.peak_bytes == (m,) * p


@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in COUNTS if m >= p])
def test_several_stages_per_rank_divide_the_idle_time(p: int, m: int, v: int) -> None:
    timeline = unit_timeline(gpipe(p * v, p, m), backward=2.0)
    assert timeline.makespan == (v * m + p - 1) * 3
    assert timeline.peak_bytes == (v * m,) * p


@pytest.mark.parametrize(
    "placement", [Placement.fold(2, 4), Placement.fold(4, 2), Placement((0, 2, 1, 1, 0, 2, 2, 0))]
)
def test_any_placement(placement: Placement) -> None:
    schedule = gpipe(8, placement.num_ranks, 5, placement)
    assert schedule.placement == placement
    assert schedule.ascends
    assert unit_timeline(schedule).makespan >= 2 * 5 * 8 / placement.num_ranks
