from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.schedules.forward_only import forward_only
from fxpipe.simulator.unit import unit_timeline
from fxpipe.viz.text import grid


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/forward_4_2_3.txt", grid(unit_timeline(forward_only(4, 2, 3))) + "\n")


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 5), (4, 3), (5, 8)])
def test_closed_forms(p: int, m: int) -> None:
    timeline = unit_timeline(forward_only(p, p, m))
    assert timeline.makespan == m + p - 1
    assert timeline.bubble == pytest.approx((p - 1) / (m + p - 1))
    assert timeline.peak_bytes == (0,) * p
