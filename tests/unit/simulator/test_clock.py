from __future__ import annotations

import math

import pytest

from fxpipe.ir.cluster import Cluster
from fxpipe.simulator.clock import SharedClock


def _all(clock: SharedClock) -> list[tuple[float, int]]:
    ends = []
    while clock.next_end() < math.inf:
        ends.append(clock.finish())
    return ends


def test_at_full_speed_jobs_do_not_see_one_another() -> None:
    clock = SharedClock(Cluster(3))
    clock.start(0, 3.0, 0.0)
    clock.start(1, 1.0, 0.5)
    assert _all(clock) == [(1.5, 1), (3.0, 0)]


def test_two_at_half_speed_share_one_worker() -> None:
    clock = SharedClock(Cluster(2, speeds=(1.0, 0.5)))
    clock.start(0, 2.0, 0.0)
    clock.start(1, 2.0, 1.0)
    # One second alone; then both at half speed: rank 0 has 1 s of work left, which takes 2 s; then
    # rank 1 has 1 s left, alone again.
    assert _all(clock) == [(3.0, 0), (4.0, 1)]


def test_the_last_speed_holds_for_more_ranks() -> None:
    clock = SharedClock(Cluster(4, speeds=(1.0, 0.5)))
    for rank in range(4):
        clock.start(rank, 1.0, 0.0)
    assert [end for end, _ in _all(clock)] == [2.0] * 4


def test_a_start_after_a_pause() -> None:
    clock = SharedClock(Cluster(2, speeds=(0.5, 0.25)))
    clock.start(0, 1.0, 0.0)
    assert _all(clock) == [(2.0, 0)]
    clock.start(1, 1.0, 10.0)
    assert _all(clock) == [(12.0, 1)]
    assert clock.next_end() == math.inf


@pytest.mark.parametrize("speed", [0.3, 0.7])
def test_work_done_is_work_given(speed: float) -> None:
    """Busy time times speed, summed over what runs, is the work."""
    clock = SharedClock(Cluster(3, speeds=(1.0, speed, speed / 2)))
    work = [1.0, 2.5, 4.0]
    for rank in range(3):
        clock.start(rank, work[rank], 0.0)
    ends = [end for end, _ in _all(clock)]
    speeds = [speed / 2, speed, 1.0]
    pieces = [b - a for a, b in zip([0.0, *ends[:-1]], ends, strict=True)]
    for rank in range(3):
        done = sum(p * s for p, s in zip(pieces[: rank + 1], speeds[: rank + 1], strict=True))
        assert done == pytest.approx(work[rank])
