from __future__ import annotations

import pytest

from fxpipe.errors import DeadlockError, IllegalScheduleError
from fxpipe.ir.action import Action, Compute, Direction, Payload, Transfer
from fxpipe.ir.program import RankProgram
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.linear import linear
from fxpipe.schedules.links import Sends, check_links, check_pairs, check_programs
from fxpipe.schedules.lower import lower
from fxpipe.schedules.one_f_one_b import one_f_one_b

FLOAT = TensorSpec((2,), "float32", requires_grad=True)
EITHER = pytest.mark.parametrize("sends", list(Sends))


def _u_net(stages: int) -> StageGraph:
    """Neighbours, and from each stage of the way down a portal to its mirror image."""
    near = [Edge(f"x{s}", s, (s + 1,), FLOAT) for s in range(stages - 1)]
    far = [Edge(f"skip{s}", s, (stages - 1 - s,), FLOAT) for s in range(stages // 2 - 1)]
    return StageGraph(stages, (), (*far, *near))


@EITHER
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_one_link_per_direction_of_a_pair_gets_everything_through(ranks: int, sends: Sends) -> None:
    check_links(lower(one_f_one_b(6, ranks, 8), _u_net(6)), sends)


def test_one_channel_per_pair_blocks_1f1b() -> None:
    """An activation down and a gradient up each wait at the head of one end of the channel."""
    programs = lower(one_f_one_b(2, 2, 4), linear(2))
    with pytest.raises(DeadlockError) as caught:
        check_links(programs, channel=lambda source, target: frozenset((source, target)))
    assert str(caught.value).splitlines() == [
        "transfers block (rendez-vous links):",
        "  - rank 0, position 3: send[a:x0:0→1]1 is not through, with 1 more behind it",
        "  - rank 1, position 3: send[g:x0:1→0]0 is not through, with 1 more behind it",
    ]


def test_one_channel_per_direction_of_all_ranks_blocks_portals() -> None:
    """The portal heads rank 0's queue; rank 2 asks for it after it got what lies behind it."""
    programs = lower(gpipe(6, 3, 2), _u_net(6))
    check_links(programs)
    with pytest.raises(DeadlockError, match=r"rank 0, position 1: send\[a:skip0:0→5\]0 is not"):
        check_links(programs, channel=lambda source, target: source < target)


def _transfer(direction: Direction, value: str) -> Transfer:
    return Transfer(direction, Payload.ACTIVATION, value, 0, 1, 0)


@EITHER
def test_receives_in_another_order_than_the_sends_block(sends: Sends) -> None:
    first: tuple[Action, ...] = (
        Compute.from_text("0F0"),
        _transfer(Direction.SEND, "a"),
        _transfer(Direction.SEND, "b"),
    )
    second: tuple[Action, ...] = (
        _transfer(Direction.RECV, "b"),
        _transfer(Direction.RECV, "a"),
        Compute.from_text("1F0"),
    )
    with pytest.raises(DeadlockError, match=r"rank 1, position 0: recv\[a:b:0→1\]0 is not"):
        check_links([RankProgram(0, first), RankProgram(1, second)], sends)


def test_a_send_that_nobody_asks_for_blocks_a_rendezvous_only() -> None:
    programs = [
        RankProgram(0, (Compute.from_text("0F0"), _transfer(Direction.SEND, "a"))),
        RankProgram(1, (Compute.from_text("1F0"),)),
    ]
    check_links(programs, Sends.UNBOUNDED)
    with pytest.raises(DeadlockError, match=r"rank 0, position 1: send\[a:a:0→1\]0 is not"):
        check_links(programs, Sends.RENDEZVOUS)


def test_what_does_not_pair_up_is_named_at_both_ends() -> None:
    first = (
        Compute.from_text("0F0"),
        _transfer(Direction.SEND, "a"),
        _transfer(Direction.SEND, "b"),
    )
    second = (
        _transfer(Direction.RECV, "a"),
        _transfer(Direction.RECV, "c"),
        Compute.from_text("1F0"),
    )
    with pytest.raises(IllegalScheduleError) as caught:
        check_programs([RankProgram(0, first), RankProgram(1, second)])
    assert str(caught.value).splitlines() == [
        "sends and receives do not pair up:",
        "  - number 1 from rank 0 to rank 1: rank 0, position 2: send[a:b:0→1]0 meets "
        "rank 1, position 1: recv[a:c:0→1]0",
    ]


def test_a_send_without_a_receive_meets_nothing() -> None:
    programs = [
        RankProgram(0, (Compute.from_text("0F0"), _transfer(Direction.SEND, "a"))),
        RankProgram(1, (Compute.from_text("1F0"),)),
    ]
    with pytest.raises(IllegalScheduleError, match=r"send\[a:a:0→1\]0 meets nothing"):
        check_pairs(programs)
