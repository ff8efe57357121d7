from __future__ import annotations

from fxpipe.ir.cost import StageCost
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.memory import kept_over_time, peak_bytes


def _peaks(text: str, *saved: int) -> tuple[int, ...]:
    costs = [StageCost(1, 1, saved_bytes=nbytes) for nbytes in saved]
    return peak_bytes(lower(Schedule.from_text(text), linear(len(saved))), costs)


def test_kept_from_forward_to_backward() -> None:
    assert _peaks("0F0 0F1 0B0 0F2 0B1 0B2", 10) == (20,)


def test_stages_of_a_rank_add_up() -> None:
    assert _peaks("0F0 1F0 1B0 0B0", 10, 7) == (17,)


def test_a_split_backward_keeps_until_its_weight_half() -> None:
    assert _peaks("0F0 0I0 0F1 0W0 0I1 0W1", 10) == (20,)
    assert _peaks("0F0 0I0 0W0 0F1 0I1 0W1", 10) == (10,)


def test_nothing_is_kept_without_a_backward() -> None:
    assert _peaks("0F0 0F1", 10) == (0,)


def test_backwards_alone_start_with_everything() -> None:
    assert _peaks("0B0 0B1 0B2", 10) == (30,)


def test_the_course_of_what_is_kept() -> None:
    costs = [StageCost(1, 3, 1, saved_bytes=10, weight_bytes=4)]
    timeline = simulate(lower(Schedule.from_text("0F0 0F1 0I0 0W0 0B1"), linear(1)), costs)
    (course,) = kept_over_time(timeline, costs)
    assert course == ((0.0, 10), (1.0, 20), (4.0, 14), (5.0, 10), (8.0, 0))
    assert max(kept for _, kept in course) == timeline.peak_bytes[0]
