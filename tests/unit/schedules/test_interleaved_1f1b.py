from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.schedules.interleaved_1f1b import interleaved_1f1b
from tests.unit.schedules.grids import peaks, picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/interleaved-1f1b_4_2_4.txt", picture(interleaved_1f1b(4, 2, 4)))


@pytest.mark.parametrize(("p", "v"), [(1, 2), (2, 2), (4, 2), (4, 3), (3, 4), (8, 2)])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_closed_forms(p: int, v: int, rounds: int) -> None:
    m = p * rounds
    schedule = interleaved_1f1b(p * v, p, m)
    timeline = thirds(schedule)
    assert timeline.makespan == 3 * (m * v + p - 1)
    warm_up = [(v - 1) * p + 2 * (p - 1 - r) + 1 for r in range(p)]
    assert peaks(schedule) == tuple(min(steps, m * v) / v for steps in warm_up)
    if rounds > 2:
        assert peaks(schedule)[0] == pytest.approx(p * (1 + (p - 1) / (p * v)))


def test_peaks_hold_at_every_size() -> None:
    for p in range(1, 17):
        for m in range(p, 65, 3 * p):
            schedule = interleaved_1f1b(2 * p, p, m)
            expected = (min(p + 2 * (p - 1 - r) + 1, 2 * m) / 2 for r in range(p))
            assert peaks(schedule) == tuple(expected)


def test_a_round_that_is_not_full_leaves_micro_batches_out() -> None:
    """9 micro-batches on 4 ranks are two rounds of five, the last of which has four."""
    full, nine = interleaved_1f1b(8, 4, 10), interleaved_1f1b(8, 4, 9)
    for there, left in zip(full.computes, nine.computes, strict=True):
        assert left == tuple(action for action in there if action.micro_batch < 9)
