from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.simulator.metrics import bubble_fraction, bubble_ratio
from fxpipe.simulator.unit import unit_timeline
from fxpipe.viz.text import grid

COUNTS = [(p, m) for p in (1, 2, 3, 4, 7) for m in (1, 2, 3, 8, 16)]


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/1f1b_3_3_4.txt", grid(unit_timeline(one_f_one_b(3, 3, 4))) + "\n")


def test_grid_with_two_stages_per_rank(golden: Callable[[str, str], None]) -> None:
    golden("schedules/1f1b_4_2_4.txt", grid(unit_timeline(one_f_one_b(4, 2, 4))) + "\n")


def test_order_as_text() -> None:
    assert one_f_one_b(3, 3, 4) == Schedule.from_text(
        """
        0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
        1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
        2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
        """,
        "1f1b",
    )


@pytest.mark.parametrize(("p", "m"), COUNTS)
def test_closed_forms(p: int, m: int) -> None:
    timeline = unit_timeline(one_f_one_b(p, p, m), backward=2.0)
    assert timeline.makespan == (m + p - 1) * 3
    assert bubble_fraction(timeline) == pytest.approx((p - 1) / (m + p - 1))
    assert bubble_ratio(timeline) == pytest.approx((p - 1) / m)
    assert timeline.peak_bytes == tuple(min(p - s, m) for s in range(p))


def test_peaks_hold_at_every_size() -> None:
    for p in (*range(1, 9), 16):
        for m in range(1, 65, 7):
            peaks = unit_timeline(one_f_one_b(p, p, m)).peak_bytes
            assert peaks == tuple(min(m, p - s) for s in range(p))


@pytest.mark.parametrize(("stages", "ranks"), [(8, 4), (12, 4), (6, 2), (5, 3)])
def test_several_stages_per_rank_keep_less_than_gpipe(stages: int, ranks: int) -> None:
    """Every stage keeps ``min(stages - s, m)`` at most, whoever shares its rank."""
    peaks = unit_timeline(one_f_one_b(stages, ranks, 16)).peak_bytes
    for rank, peak in enumerate(peaks):
        assert peak <= sum(min(stages - s, 16) for s in range(rank, stages, ranks))
    assert max(peaks) < max(unit_timeline(gpipe(stages, ranks, 16)).peak_bytes)


@pytest.mark.parametrize(("v", "bubble"), [(2, 0.1864), (3, 0.1325)])
def test_several_stages_per_rank_idle_less(v: int, bubble: float) -> None:
    timeline = unit_timeline(one_f_one_b(4 * v, 4, 8), backward=2.0)
    assert bubble_fraction(timeline) == pytest.approx(bubble, abs=5e-5)
    assert bubble_fraction(unit_timeline(one_f_one_b(4, 4, 8), backward=2.0)) > bubble


@pytest.mark.parametrize(
    "placement", [Placement.fold(2, 4), Placement.fold(4, 2), Placement((0, 2, 1, 1, 0, 2, 2, 0))]
)
def test_any_placement(placement: Placement) -> None:
    schedule = one_f_one_b(8, placement.num_ranks, 5, placement)
    assert schedule.placement == placement
    assert schedule.ascends
    assert unit_timeline(schedule).makespan >= 2 * 5 * 8 / placement.num_ranks
