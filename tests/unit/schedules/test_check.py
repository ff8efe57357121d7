from __future__ import annotations

import pytest

from fxpipe.errors import DeadlockError, IllegalScheduleError
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.schedules.backward_only import backward_only
from fxpipe.schedules.check import check
from fxpipe.schedules.depend import Result
from fxpipe.schedules.linear import linear


def _refused(text: str, graph: StageGraph | None = None) -> str:
    with pytest.raises(IllegalScheduleError) as caught:
        check(Schedule.from_text(text, "mine"), graph or linear(2))
    return str(caught.value)


def test_a_legal_schedule_passes() -> None:
    check(Schedule.from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"), linear(2))


def test_full_and_split_backwards_mix() -> None:
    check(Schedule.from_text("0F0 0F1 0B0 0I1 0W1\n1F0 1I0 1F1 1W0 1B1"), linear(2))


def test_a_missing_action_is_named_with_its_rank() -> None:
    message = _refused("0F0 0F1 0B0 0B1\n1F0 1B0 1F1")
    assert message.splitlines() == [
        "schedule 'mine' cannot run:",
        "  - rank 1 lacks 1B1, which makes the input gradient and weight gradient of stage 1, "
        "micro-batch 1; it can stand from position 3 on",
    ]
    message = _refused("0F0 0I0 0F1 0I1 0W1\n1F0 1B0 1B1")
    assert "rank 0 lacks 0W0, which" in message
    assert "stage 0, micro-batch 0; it can stand from position 2 on" in message
    assert "rank 1 lacks 1F1, which" in message
    assert "stage 1, micro-batch 1; it can stand from position 0 on" in message


def test_an_input_backward_alone_lacks_the_weight_gradient() -> None:
    message = _refused("0F0 0I0", linear(1))
    assert "rank 0 lacks 0W0, which makes the weight gradient of stage 0, micro-batch 0" in message


def test_a_missing_stage_is_named() -> None:
    message = _refused("0F0\n1F0", linear(3))
    assert "every rank lacks 2F0, which makes the output of stage 2, micro-batch 0" in message


def test_a_stage_that_does_not_exist_is_named() -> None:
    assert "rank 2, position 0: 2F0: there is no stage 2 of 2" in _refused("0F0\n1F0\n2F0")


def test_a_repeated_action_is_named_with_the_first() -> None:
    message = _refused("0F0 0F0 0B0\n1F0 1B0")
    assert "rank 0, position 1: 0F0 makes the output of stage 0, micro-batch 0 again" in message
    assert "rank 0 does at position 0" in message


def test_a_full_and_a_half_backward_repeat_each_other() -> None:
    message = _refused("0F0 0B0 0W0", linear(1))
    assert "position 2: 0W0 makes the weight gradient of stage 0, micro-batch 0 again" in message


def test_a_stage_on_two_ranks_is_named() -> None:
    assert "rank 1, position 0: 0F1: stage 0 is on rank 0" in _refused("0F0\n0F1", linear(1))


def test_the_rank_with_most_of_a_stage_is_its_home() -> None:
    message = _refused("0F0 0F1 1B0 0B1\n1F0 1F1 0B0 1B1")
    assert message.splitlines()[1:] == [
        "  - rank 0, position 2: 1B0: stage 1 is on rank 1",
        "  - rank 1, position 2: 0B0: stage 0 is on rank 0",
    ]


def test_a_micro_batch_stays_in_its_copy() -> None:
    schedule = Schedule.from_text("0F0 1F1 0B0 1B1\n1F0 0F1 1B0 0B1", replicas=2)
    check(schedule, linear(2))
    mixed = Schedule.from_text("0F0 1F0 0B0 1B1\n1F1 0F1 1B0 0B1", replicas=2)
    with pytest.raises(IllegalScheduleError, match="1B0: rank 0 runs stage 1 for this micro-batch"):
        check(mixed, linear(2))


def test_an_action_before_what_it_needs_on_its_own_rank() -> None:
    message = _refused("0B0 0F0\n1F0 1B0")
    assert (
        "rank 0, position 0: 0B0 needs the output of stage 0, micro-batch 0, "
        "which the rank makes later, at position 1"
    ) in message


def test_an_empty_schedule_is_refused() -> None:
    with pytest.raises(IllegalScheduleError, match="it is empty"):
        check(Schedule(((), ())), linear(2))


def test_every_problem_is_listed_up_to_a_limit() -> None:
    message = _refused("\n".join(f"{stage}F0" for stage in range(100)), linear(1))
    assert len(message.splitlines()) == 42
    assert message.endswith("… and 59 more")


def test_what_is_missing_is_counted_not_listed() -> None:
    message = _refused("0F0 0F1 0B1", linear(10**5))
    assert message.splitlines()[1].startswith("  - rank 0 lacks 0B0, which makes")
    assert len(message.splitlines()) == 42
    assert message.endswith(f"… and {2 * 2 * 10**5 - 3 - 40} more")


def test_ranks_that_wait_for_one_another() -> None:
    with pytest.raises(DeadlockError) as caught:
        check(Schedule.from_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0"), linear(2))
    assert str(caught.value).splitlines() == [
        "the schedule deadlocks:",
        "  - rank 0 waits at position 1 to run 0B0 for the input gradient of stage 1, micro-batch 0, "
        "which rank 1 makes at its position 3, but it stands at 0",
        "  - rank 1 waits at position 0 to run 1F1 for the output of stage 0, micro-batch 1, "
        "which rank 0 makes at its position 2, but it stands at 1",
    ]


def test_an_edge_more_can_make_a_deadlock() -> None:
    schedule = Schedule.from_text("2F0 0F0\n1F0")
    check(schedule, StageGraph(3, (), (Edge("a", 0, (1,)),)))
    with pytest.raises(
        DeadlockError, match="rank 0 waits at position 0 to run 2F0 for the output of stage 1"
    ):
        check(schedule, StageGraph(3, (), (Edge("a", 0, (1,)), Edge("b", 1, (2,)))))


def test_backwards_alone_need_their_forwards_given() -> None:
    schedule = backward_only(4, 2, 3)
    check(schedule, linear(4), given=(Result.OUTPUT,))
    with pytest.raises(IllegalScheduleError, match="lacks 0F0, which makes the output"):
        check(schedule, linear(4))


def test_cells_are_checked_as_a_whole() -> None:
    """A cell starts when all its actions can: one must not wait for what follows the other."""
    fine = "0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"
    check(Schedule.from_text(fine), linear(2))
    stuck = "0F0 (0F1;0B0)OVERLAP_F_B 0B1\n1F0 1F1 1B0 1B1"
    with pytest.raises(DeadlockError) as caught:
        check(Schedule.from_text(stuck), linear(2))
    assert str(caught.value).splitlines()[1] == (
        "  - rank 0 waits at position 1 to run (0F1;0B0)OVERLAP_F_B for the input gradient of "
        "stage 1, micro-batch 0, which rank 1 makes at its position 2, but it stands at 1"
    )


def test_a_cell_has_one_position() -> None:
    message = _refused("(0F0;0F1)OVERLAP_F_B 0B0 0F1", linear(1))
    assert "rank 0, position 2: 0F1 makes the output of stage 0, micro-batch 1 again: " in message
    assert "rank 0 does at position 0" in message


def test_a_recomputation_stands_between_forward_and_backward() -> None:
    check(Schedule.from_text("0F0 0F1 0R0 0B0 0R1 0I1 0W1"), linear(1))
    assert (
        "rank 0, position 1: 0B0 needs the recomputed activations of stage 0, micro-batch 0, "
        "which the rank makes later, at position 2"
    ) in _refused("0F0 0B0 0R0", linear(1))
    assert "0R0 needs the output of stage 0" in _refused("0R0 0F0 0B0", linear(1))
    assert "0R0 makes the recomputed activations of stage 0, micro-batch 0 again" in _refused(
        "0F0 0R0 0R0 0B0", linear(1)
    )


def test_an_update_comes_once_after_the_last_gradient() -> None:
    check(Schedule.from_text("0F0 0F1 0B0 0I1 0W1 0U\n1F0 1B0 1F1 1B1 1U"), linear(2))
    message = _refused("0F0 0F1 0B0 0U 0I1 0W1 0U", linear(1))
    assert "rank 0, position 6: 0U comes again: it stands at position 3" in message
    assert "rank 0, position 3: 0U comes before 0W1 at position 5" in message


def test_replicas_are_asked_for() -> None:
    text = "0F0 1F1 1B1 0B0\n0F1 1F0 1B0 0B1"
    check(Schedule.from_text(text, replicas=2), linear(2))
    assert "rank 1, position 0: 0F1: stage 0 is on rank 0" in _refused(text)


def test_a_micro_batch_stays_in_its_replica_of_a_stage() -> None:
    text = "0F0 0B1\n0F1 0B0"
    with pytest.raises(IllegalScheduleError, match="0B0: rank 0 runs stage 0 for this micro-b"):
        check(Schedule.from_text(text, replicas=2), linear(1))


def test_only_the_circle_is_told_and_who_waits_behind_it() -> None:
    schedule = Schedule.from_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0\n2F0 2B0 2F1 2B1")
    with pytest.raises(DeadlockError) as caught:
        check(schedule, linear(3))
    lines = str(caught.value).splitlines()
    assert [line.split(" to run")[0] for line in lines[1:-1]] == [
        "  - rank 0 waits at position 1",
        "  - rank 1 waits at position 0",
    ]
    assert lines[-1] == "  - 1 more rank waits behind them"


def test_the_actions_of_a_cell_are_run_in_order() -> None:
    check(Schedule.from_text("0F0 0B0\n(1F0;1B0)OVERLAP_F_B"), linear(2))
    assert (
        "1B0 needs the output of stage 1, micro-batch 0, which the rank makes later, in the same cell"
        in (_refused("0F0 0B0\n(1B0;1F0)OVERLAP_F_B"))
    )


@pytest.mark.parametrize(
    ("text", "rank", "position", "update"),
    [
        ("0F0 0B0 5U\n1F0 1B0", 0, 2, "5U"),
        ("0F0 0B0 1U\n1F0 1B0", 0, 2, "1U"),
        ("0F0 0B0\n1F0 1B0 0U", 1, 2, "0U"),
        ("0F0\n1F0 1U", 1, 1, "1U"),
    ],
)
def test_an_update_of_a_stage_whose_gradients_the_rank_does_not_make(
    text: str, rank: int, position: int, update: str
) -> None:
    assert (
        f"rank {rank}, position {position}: {update}: the rank makes no gradients for the weights of "
        f"stage {update[0]}"
    ) in _refused(text)


def test_a_recomputation_that_no_backward_reads() -> None:
    assert "rank 1, position 1: 1R0: no backward reads what it makes" in _refused("0F0\n1F0 1R0")
