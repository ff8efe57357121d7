from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.schedules.backward_only import backward_only
from fxpipe.schedules.depend import Result
from fxpipe.simulator.unit import unit_timeline
from fxpipe.viz.text import grid

GIVEN = (Result.OUTPUT,)


def test_grid(golden: Callable[[str, str], None]) -> None:
    timeline = unit_timeline(backward_only(4, 2, 3), given=GIVEN)
    golden("schedules/backward_4_2_3.txt", grid(timeline) + "\n")


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 5), (4, 3), (5, 8)])
def test_closed_forms(p: int, m: int) -> None:
    timeline = unit_timeline(backward_only(p, p, m), backward=2.0, given=GIVEN)
    assert timeline.makespan == (m + p - 1) * 2
    assert timeline.peak_bytes == (m,) * p


def test_the_last_stage_of_a_rank_goes_first() -> None:
    assert [str(a) for a in backward_only(4, 2, 2).ranks[1]] == ["3B0", "3B1", "1B0", "1B1"]
