from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.ir.plan import Placement
from fxpipe.schedules.hanayo import hanayo
from fxpipe.simulator.metrics import bubble_fraction
from tests.unit.schedules.grids import peaks, picture, thirds


def test_grid(golden: Callable[[str, str], None]) -> None:
    golden("schedules/hanayo_8_4_4.txt", picture(hanayo(8, 4, 4)))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_more_waves_idle_less(p: int) -> None:
    bubbles = [bubble_fraction(thirds(hanayo(2 * w * p, p, p))) for w in (1, 2, 4)]
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[0] < (p - 1) / (2 * p - 1)  # 1F1B's


@pytest.mark.parametrize("p", [2, 3, 4, 6, 8, 12, 16])
@pytest.mark.parametrize("waves", [1, 2, 3, 4, 8])
def test_as_many_micro_batches_as_ranks(p: int, waves: int) -> None:
    """Idle time ``4 (p - 1)`` chunk forwards, of which three quarters cannot be avoided.

    The first chunk of the last rank starts after ``p - 1`` forwards, and after its last backward come
    ``p - 1`` more, of two units each. The paper's bubble, ``(2 p - 2) / (3 p W + p - 1)``, sets the
    same idle time in relation to ``p - 1`` units less than work and idle time are together; so ours is
    less for one wave, and never more than by what several waves idle longer.
    """
    timeline = thirds(hanayo(2 * waves * p, p, p))
    idle = timeline.makespan - 6 * waves * p
    assert 3 * (p - 1) <= idle <= 1.1 * 4 * (p - 1)
    if waves == 1:
        assert idle == 4 * (p - 1)
        assert bubble_fraction(timeline) == pytest.approx((2 * p - 2) / (5 * p - 2))
    published = (2 * p - 2) / (3 * p * waves + p - 1)
    assert bubble_fraction(timeline) <= published * (1.0 if waves <= 2 else 1.06)


@pytest.mark.parametrize(("p", "waves"), [(2, 1), (4, 1), (4, 2), (8, 2)])
@pytest.mark.parametrize("m", [1, 5, 8, 24])
def test_no_rank_keeps_more_than_the_first_of_1f1b(p: int, waves: int, m: int) -> None:
    schedule = hanayo(2 * waves * p, p, m)
    assert schedule.placement == Placement.fold(p, 2 * waves)
    assert max(peaks(schedule)) <= p


def test_it_ends_at_all_counts() -> None:
    for p in range(1, 6):
        for stages in range(p, 5 * p + 1):
            for m in (1, 2, p, 3 * p):
                schedule = hanayo(stages, p, m)
                assert sum(map(len, schedule.computes)) == 2 * stages * m
