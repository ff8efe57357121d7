from __future__ import annotations

import pytest
from hypothesis import given

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.dualpipe import dualpipe
from fxpipe.schedules.one_f_one_b import one_f_one_b
from tests.unit.ir.strategies import counts, schedules


def test_counts_and_placement() -> None:
    schedule = Schedule.from_text("0F0, 2F0, 0F1\n1F0 1B0", "mine")
    assert (schedule.num_ranks, schedule.num_stages, schedule.num_micro_batches) == (2, 3, 2)
    assert schedule.placement.ranks == (0, 1, 0)
    assert schedule.has_backward
    assert not Schedule.from_text("0F0").has_backward


@given(counts())
def test_text_returns_the_schedule(at: tuple[int, int, int]) -> None:
    schedule = one_f_one_b(*at)
    assert Schedule.from_text(str(schedule), "1f1b") == schedule


def test_a_word_that_is_no_action_is_refused() -> None:
    with pytest.raises(ScheduleError) as refused:
        Schedule.from_text("0F0 bubble 0B0\n1F0 1f1 0SEND_F1 (1B0)OVERLAP_F_B", "mine")
    title, *lines = str(refused.value).splitlines()
    assert title == "schedule 'mine' cannot be read:"
    assert lines[0].startswith("  - rank 0, position 1: 'bubble' is no action: expected <stage>")
    assert lines[1:] == [
        "  - rank 1, position 1: '1f1' is no action: kinds are capital letters, '1F1'",
        "  - rank 1, position 2: '0SEND_F1' is no action: transfers are added along the edges of the "
        "model's stages, leave them out",
        "  - rank 1, position 3: a fused cell has two actions or more, got 1",
    ]


def test_a_text_of_another_kind_is_not_listed_in_full() -> None:
    with pytest.raises(ScheduleError, match="the schedule cannot be read:") as refused:
        Schedule.from_text("what is this " * 100)
    assert str(refused.value).splitlines()[-1] == "  - … and 290 more"


@given(schedules)
def test_text_returns_every_schedule_whose_ranks_do_something(schedule: Schedule) -> None:
    if schedule.ranks and all(schedule.ranks):
        text = schedule.to_text()
        assert Schedule.from_text(text, schedule.name, schedule.replicas) == schedule


def test_cells_are_opened() -> None:
    schedule = Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1 0U")
    assert [str(action) for action in schedule.computes[0]] == ["0F0", "0F1", "0B0", "0B1"]
    assert (schedule.num_stages, schedule.num_micro_batches) == (1, 2)


def test_a_recomputation_is_no_backward() -> None:
    assert not Schedule.from_text("0F0 0R0").has_backward


@pytest.mark.parametrize(
    ("text", "ascends"),
    [
        ("0F0 0F1 0B0 0B1", True),
        ("0F0 0F1 0B1 0B0", False),
        ("0F1 0F0 0B0 0B1", False),
        ("0F0 0F1 0I0 0I1 0W1 0W0", False),
        ("0F0 0F1 0I0 0B1 0W0", False),
        ("0F0 0F1 0B0 0I1 0W1", True),
        ("1F0 1F1 0F0\n0F1", True),
    ],
)
def test_whether_micro_batches_ascend(text: str, ascends: bool) -> None:
    """A full backward is both halves: its weight gradient must not overtake an earlier one."""
    assert Schedule.from_text(text).ascends is ascends


def test_replicas_have_placements_of_their_own() -> None:
    schedule = Schedule.from_text("0F0 1F1 0F2\n0F1 1F0 1F2", replicas=2)
    assert schedule.placement == Placement((0, 1), ((1, 0),), (0, 1, 0))


def test_a_stage_without_a_rank_is_named() -> None:
    with pytest.raises(ScheduleError, match="no rank runs stage 1"):
        _ = Schedule.from_text("0F0 2F0").placement
    with pytest.raises(ScheduleError, match="no rank runs stage 1 for micro-batch 1"):
        _ = Schedule.from_text("0F0 1F0 0F1", replicas=2).placement


def test_the_text_says_how_many_copies_there_are() -> None:
    schedule = dualpipe(4, 4, 8)
    text = schedule.to_text()
    assert text.startswith("# replicas: 2\n")
    assert Schedule.from_text(text, "dualpipe") == schedule
    assert Schedule.from_text(text, "dualpipe", 3).replicas == 3
    assert Schedule.from_text("# mine\n0F0 0B0\n") == Schedule.from_text("0F0 0B0")


def test_what_is_no_cell_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"rank 1, position 1: '1B0' is a str, no .*from_text"):
        Schedule(((Compute(Kind.FORWARD, 0, 0),), (Compute(Kind.FORWARD, 1, 0), "1B0")))  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="one copy of every stage or more, not 0"):
        Schedule((), replicas=0)


def test_what_follows_a_number_sign_is_left_out() -> None:
    text = "0F0 0B0  # the first\n  # nothing\n1F0, 1B0# replicas: 7\n"
    assert Schedule.from_text(text) == Schedule.from_text("0F0 0B0\n1F0 1B0")


@pytest.mark.parametrize("number", ["x", "", "2.0", "-1", "two of them"])
def test_copies_are_a_number(number: str) -> None:
    with pytest.raises(ScheduleError, match=f"# replicas: ?{number}.*: replicas must be a number"):
        Schedule.from_text(f"# replicas: {number}\n0F0 0B0")


@pytest.mark.parametrize("text", ["", "\n \n", "# replicas: 2", "# 0F0"])
def test_a_text_without_actions_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="schedule 'mine' has no actions in it"):
        Schedule.from_text(text, "mine")
