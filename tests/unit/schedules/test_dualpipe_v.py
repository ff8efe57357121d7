from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.ir.action import Fused
from fxpipe.ir.plan import Placement
from fxpipe.schedules.dualpipe_v import dualpipe_v
from tests.unit.schedules.grids import peaks, picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/dualpipe-v_4_2_6.txt", picture(dualpipe_v(4, 2, 6)))


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 2, 9])
def test_closed_forms(p: int, more: int) -> None:
    """A cell hands on at its end: released after their forward half, values would save time."""
    m = 2 * p + more
    schedule = dualpipe_v(2 * p, p, m)
    assert schedule.placement == Placement.fold(p)
    assert thirds(schedule).makespan == 6 * m + 2 * (p - 1)
    assert peaks(schedule)[0] == p + 0.5


def test_what_the_official_figure_shows() -> None:
    timeline = thirds(dualpipe_v(8, 4, 10))
    assert timeline.makespan == 66
    assert [timeline.makespan - timeline.busy(rank) for rank in range(4)] == [6] * 4


def test_cells_of_several_stages_have_them_all() -> None:
    cells = [cell for row in dualpipe_v(8, 2, 6).ranks for cell in row if isinstance(cell, Fused)]
    assert {len(cell.actions) for cell in cells} == {4}
    assert "(0F" in str(cells[0])
