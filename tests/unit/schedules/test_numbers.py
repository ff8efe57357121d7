from __future__ import annotations

from collections.abc import Callable

import pytest

from fxpipe.errors import IllegalScheduleError
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.check import check
from fxpipe.schedules.linear import chain_of, linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.numbers import require_all_numbers, require_all_stages
from fxpipe.schedules.starts import place, unit_starts
from fxpipe.simulator.unit import unit_timeline

LARGE = 99999999999999999999
"""As many stages or micro-batches are never counted one by one."""


def test_all_numbers_are_there() -> None:
    schedule = Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1 0U\n1F0 1B0 1F1 1B1")
    require_all_numbers(schedule)
    require_all_numbers(Schedule(()))
    assert chain_of(schedule) == linear(2)


@pytest.mark.parametrize("wrong", [3, LARGE])
def test_a_stage_that_is_left_out_is_named_with_the_action_that_says_so(wrong: int) -> None:
    schedule = Schedule.from_text(f"0F0 0B0\n1F0 {wrong}B0", "mine")
    more = "" if wrong == 3 else rf" \(nor of {wrong - 3} more\)"
    told = (
        rf"'mine' cannot run: rank 1, position 1: {wrong}B0 is of stage {wrong}, and there is no "
        rf"action of stage 2{more}$"
    )
    with pytest.raises(IllegalScheduleError, match=told):
        require_all_stages(schedule)


@pytest.mark.parametrize("use", [unit_starts, unit_timeline, chain_of, require_all_numbers])
def test_a_slip_of_the_pen_is_told_at_once(use: Callable[[Schedule], object]) -> None:
    with pytest.raises(IllegalScheduleError, match="no action of stage 0"):
        use(Schedule.from_text(f"{LARGE}F0 1F1 1B0 1B1"))


def test_also_in_a_micro_batch() -> None:
    schedule = Schedule.from_text(f"0F0 0F{LARGE} 0B0")
    told = (
        f"position 1: 0F{LARGE} is of micro-batch {LARGE}, and there is no action of micro-batch 1"
    )
    for use in (unit_starts, unit_timeline, require_all_numbers):
        with pytest.raises(IllegalScheduleError, match=told):
            use(schedule)
    with pytest.raises(IllegalScheduleError, match=told):
        place(schedule, Placement((0,)))
    with pytest.raises(IllegalScheduleError, match=f"rank 0 lacks 0B{LARGE}, which makes"):
        check(schedule, linear(1))
    assert [len(program.actions) for program in lower(schedule, linear(1))] == [3]
