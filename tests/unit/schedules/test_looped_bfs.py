from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.schedules.looped_bfs import looped_bfs
from tests.unit.schedules.grids import peaks, picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/looped-bfs_4_2_3.txt", picture(looped_bfs(4, 2, 3)))


@pytest.mark.parametrize(("p", "v"), [(1, 3), (2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("m", [4, 8, 13])
def test_closed_forms(p: int, v: int, m: int) -> None:
    schedule = looped_bfs(p * v, p, m)
    assert thirds(schedule).makespan == 3 * (m * v + p - 1)
    assert peaks(schedule) == (float(m),) * p
