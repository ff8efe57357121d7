from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.errors import ScheduleError, UnsupportedCountsError
from fxpipe.ir.plan import Placement
from fxpipe.schedules.counts import require_counts, require_even, require_placement
from fxpipe.schedules.eager_1f1b import eager_1f1b
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.schedules.zb_h1 import zb_h1
from fxpipe.schedules.zb_h2 import zb_h2


def test_stages_need_not_divide_evenly() -> None:
    require_counts(5, 3, 1)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ((0, 1, 1), "at least one of its stages, got 0"),
        ((1, -1, 1), "at least one of its ranks, got -1"),
        ((1, 1, 0), "at least one of its micro-batches, got 0"),
        ((2, 3, 1), "3 ranks for 2 stages: a rank would have nothing to do"),
    ],
)
def test_what_is_wrong_is_said(at: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        require_counts(*at)


def test_an_odd_number_of_ranks_is_refused_with_what_to_do() -> None:
    require_even("mirrored", 4, "other")
    with pytest.raises(UnsupportedCountsError, match=r"'mirrored'.*got 5: use 4 or 6, or 'other'"):
        require_even("mirrored", 5, "other")
    with pytest.raises(UnsupportedCountsError, match="got 1: use 2, or"):
        require_even("mirrored", 1, "other")


OTHERS = [
    (Placement.fold(2), "a placement of 4 stages for 6"),
    (Placement((0, 1, 2, 3, 1, 0)), "puts stage 3 on rank 3, and there are 3 ranks"),
    (Placement((0, 2, 2, 2, 2, 0)), "leaves rank 1 of 3 without a stage"),
    (Placement(Placement.fold(3).ranks, (Placement.loop(3, 2).ranks,), (0, 1)), "with replicas"),
]


@pytest.mark.parametrize(("placement", "message"), OTHERS)
@pytest.mark.parametrize("generator", [gpipe, one_f_one_b, eager_1f1b, zb_h1, zb_h2])
def test_a_placement_of_other_counts_is_refused(
    generator: Callable[..., object], placement: Placement, message: str
) -> None:
    require_placement(Placement.fold(3), 6, 3)
    with pytest.raises(ScheduleError, match=message):
        generator(6, 3, 2, placement)
