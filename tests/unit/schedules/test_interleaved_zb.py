from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.schedules.interleaved_zb import interleaved_zb
from tests.unit.schedules.grids import peaks, picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/interleaved-zb_4_2_4.txt", picture(interleaved_zb(4, 2, 4)))


@pytest.mark.parametrize(("p", "v"), [(1, 2), (2, 2), (4, 2), (4, 3), (8, 2)])
@pytest.mark.parametrize("rounds", [2, 3])
def test_closed_forms(p: int, v: int, rounds: int) -> None:
    m = p * rounds
    schedule = interleaved_zb(p * v, p, m)
    assert thirds(schedule).makespan == 3 * m * v + p - 1
    assert peaks(schedule) == (float(p),) * p
