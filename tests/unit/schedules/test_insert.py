from __future__ import annotations

import pytest

from fxpipe.ir.cost import StageCost
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.check import check
from fxpipe.schedules.insert import with_recomputes, with_updates, without_cells
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.engine import simulate

TRAINING = pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"forward"}))


@TRAINING
def test_updates_follow_the_last_gradient(name: str) -> None:
    schedule = with_updates(SCHEDULES[name](8, 2, 4))
    check(schedule, linear(8))
    updates = [str(cell) for cells in schedule.ranks for cell in cells if str(cell).endswith("U")]
    assert sorted(updates) == sorted([f"{stage}U" for stage in range(8)] * schedule.replicas)


def test_where_updates_stand() -> None:
    schedule = Schedule.from_text("0F0 1F0 1I0 0B0 1W0")
    assert str(with_updates(schedule)) == "0F0 1F0 1I0 0B0 0U 1W0 1U"


@TRAINING
def test_recomputations_stand_before_their_backwards(name: str) -> None:
    schedule = with_recomputes(SCHEDULES[name](4, 2, 4), {1, 3})
    check(schedule, linear(4))
    costs = [StageCost(1, 2, 1, saved_bytes=10, weight_bytes=2, input_bytes=1)] * 4
    plain = simulate(lower(SCHEDULES[name](4, 2, 4), linear(4)), costs)
    recomputed = simulate(lower(schedule, linear(4)), costs)
    assert sum(recomputed.peak_bytes) < sum(plain.peak_bytes)
    work = sum(recomputed.busy(rank) - plain.busy(rank) for rank in range(2))
    assert work == 2 * 4


def test_a_recomputation_fills_the_wait_for_a_gradient() -> None:
    costs = [StageCost(1, 2)] * 2
    schedule = Schedule.from_text("0F0 0B0\n1F0 1B0")
    recomputed = with_recomputes(schedule, {0})
    assert str(recomputed.ranks[0][1]) == "0R0"
    times = [simulate(lower(s, linear(2)), costs).makespan for s in (schedule, recomputed)]
    assert times == [6.0, 6.0]


def test_cells_are_opened() -> None:
    schedule = Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1 0U")
    assert str(without_cells(schedule)) == "0F0 0F1 0B0 0B1 0U"
