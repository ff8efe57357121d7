from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.errors import UnsupportedCountsError
from fxpipe.schedules.dualpipe import dualpipe
from tests.unit.schedules.grids import picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/dualpipe_4_4_8.txt", picture(dualpipe(4, 4, 8)))


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize("more", [0, 2, 10])
def test_closed_forms(p: int, more: int) -> None:
    m = 2 * p + more
    timeline = thirds(dualpipe(p, p, m))
    assert timeline.makespan == 3 * m + p - 2
    assert timeline.peak_bytes == (p + 1,) * p


def test_what_the_official_figure_shows() -> None:
    timeline = thirds(dualpipe(8, 8, 20))
    assert timeline.makespan == 66
    assert [timeline.makespan - timeline.busy(rank) for rank in range(8)] == [6] * 8


def test_odd_micro_batches_go_the_other_way() -> None:
    placement = dualpipe(4, 4, 8).placement
    assert placement.ranks == (0, 1, 2, 3)
    assert placement.replicas == ((3, 2, 1, 0),)
    assert placement.copy_of == (0, 1) * 4


def test_an_odd_number_of_ranks_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedCountsError) as caught:
        dualpipe(3, 3, 6)
    assert str(caught.value) == (
        "schedule 'dualpipe' needs an even number of ranks, got 3: use 2 or 4, "
        "or 'dualpipe-v', which runs on any number"
    )
