from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.errors import ScheduleError
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.check import check
from fxpipe.schedules.linear import linear
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.schedules.starts import place, unit_starts


def test_starts_are_those_of_the_grid() -> None:
    # F0  F1  F2  .   .   B0  F3  B1  .   B2  .   B3
    # .   F0  F1  .   B0  F2  B1  F3  B2  .   B3  .
    # .   .   F0  B0  F1  B1  F2  B2  F3  B3  .   .
    assert unit_starts(one_f_one_b(3, 3, 4)) == (
        (0, 1, 2, 5, 6, 7, 9, 11),
        (1, 2, 4, 5, 6, 7, 8, 10),
        (2, 3, 4, 5, 6, 7, 8, 9),
    )


def test_a_cell_takes_as_long_as_its_actions_and_an_update_nothing() -> None:
    assert unit_starts(Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0U 0B1")) == ((0, 1, 3, 3),)


def test_ranks_that_wait_for_one_another_have_no_starts() -> None:
    with pytest.raises(ScheduleError, match="wait for one another"):
        unit_starts(Schedule.from_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0"))


@given(
    st.sampled_from(sorted(set(SCHEDULES) - {"dualpipe", "chimera"})),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
    st.integers(1, 6),
)
def test_whatever_the_placement_it_is_legal(name: str, where: list[int], m: int) -> None:
    ranks = tuple(sorted(set(where)).index(rank) for rank in where)
    for own in (1, 2, 3, 6):
        schedule = place(SCHEDULES[name](6, own, m), Placement(ranks), "placed")
        check(schedule, linear(6))
        assert schedule.placement == Placement(ranks)
        assert schedule.name == "placed"
        assert schedule.ascends


def test_updates_stay_behind_their_stage() -> None:
    schedule = Schedule.from_text("0F0 0B0 0U\n1F0 1B0 1U")
    assert str(place(schedule, Placement((0, 0)))) == "0F0 1F0 1B0 1U 0B0 0U"


def test_a_placement_of_other_stages_is_refused() -> None:
    with pytest.raises(ScheduleError, match="placement of 3 stages for a schedule of 2"):
        place(one_f_one_b(2, 2, 2), Placement((0, 1, 0)))


@pytest.mark.parametrize("name", ["dualpipe", "chimera"])
def test_copies_are_not_placed(name: str) -> None:
    with pytest.raises(ScheduleError, match="has 2 copies of every stage"):
        place(SCHEDULES[name](4, 4, 8), Placement.fold(2))
    with pytest.raises(ScheduleError, match="a placement with replicas"):
        place(one_f_one_b(2, 2, 2), Placement((0, 1), ((1, 0),), (0, 1)))


def test_what_is_no_placement_of_these_stages_is_refused() -> None:
    with pytest.raises(ScheduleError, match="leaves rank 1 of 3 without a stage"):
        place(one_f_one_b(2, 2, 2), Placement((0, 2)))
    with pytest.raises(ScheduleError, match=r"no Placement, but a list: \[0, 1\]"):
        place(one_f_one_b(2, 2, 2), [0, 1])  # type: ignore[arg-type]
