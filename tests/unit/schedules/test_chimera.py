from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.errors import UnsupportedCountsError
from fxpipe.schedules.chimera import chimera
from fxpipe.simulator.metrics import bubble_fraction
from fxpipe.simulator.unit import unit_timeline
from fxpipe.viz.text import grid


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/chimera_4_4_4.txt", grid(unit_timeline(chimera(4, 4, 4))) + "\n")


@pytest.mark.parametrize("p", [2, 4, 6, 8, 16])
@pytest.mark.parametrize("units", [1, 2, 3])
def test_closed_forms(p: int, units: int) -> None:
    m = p * units
    timeline = unit_timeline(chimera(p, p, m))
    assert bubble_fraction(timeline) == pytest.approx((p - 2) / (2 * m + p - 2))
    assert timeline.peak_bytes == tuple(p // 2 + 1 + min(r, p - 1 - r) for r in range(p))


@pytest.mark.parametrize("p", [2, 4, 6, 8, 16])
def test_one_unit_with_longer_backwards(p: int) -> None:
    bubble = bubble_fraction(unit_timeline(chimera(p, p, p), backward=2.0))
    assert bubble == pytest.approx((p - 2) / (1.5 * p + p - 2))


def test_an_odd_number_of_ranks_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedCountsError, match=r"'chimera' needs an even number.*got 5"):
        chimera(5, 5, 5)
