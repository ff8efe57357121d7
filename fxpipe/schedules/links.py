"""Whether the transfers of rank programs get through when every link is a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import TypeAlias

from fxpipe.errors import DeadlockError, IllegalScheduleError
from fxpipe.ir.action import Direction, Transfer
from fxpipe.ir.program import RankProgram, homes_of

_Standing: TypeAlias = tuple[int, Transfer]
"""Position in its rank's program, transfer."""


class Sends(StrEnum):
    """How a link takes a value."""

    UNBOUNDED = "unbounded"
    """It keeps any number of values until they are asked for."""
    RENDEZVOUS = "rendez-vous"
    """It is occupied until the other end asks for the value; the sending rank goes on."""


def directed_pair(source: int, target: int) -> Hashable:
    """The link from one rank to another: one per direction."""
    return (source, target)


def check_programs(programs: Sequence[RankProgram]) -> None:
    """Nothing, if the transfers of `programs` pair up and get through, whatever links do with sends.

    Args:
        programs: one per rank, as `fxpipe.schedules.lower.lower` makes them.

    Raises:
        IllegalScheduleError: if sends and receives do not pair up, see `check_pairs`.
        DeadlockError: if a transfer never gets through, see `check_links`.
    """
    check_pairs(programs)
    for sends in Sends:
        check_links(programs, sends)


def check_pairs(programs: Sequence[RankProgram]) -> None:
    """Nothing, if on every link from one rank to another the n-th receive is of the n-th send.

    Raises:
        IllegalScheduleError: the message names, for each link, the first rank, position and action
            that have no counterpart.
    """
    homes = homes_of(programs)
    sends: dict[tuple[int, int], list[_Standing]] = {}
    receives: dict[tuple[int, int], list[_Standing]] = {}
    for program in programs:
        for position, action in enumerate(program.actions):
            if isinstance(action, Transfer):
                link = _ends(action, homes)
                side = sends if action.direction is Direction.SEND else receives
                side.setdefault(link, []).append((position, action))
    links = sorted({*sends, *receives})
    problems = [
        problem
        for link in links
        for problem in _unpaired(link, sends.get(link, []), receives.get(link, []))
    ]
    if problems:
        lines = [f"  - {problem}" for problem in problems]
        raise IllegalScheduleError("\n".join(["sends and receives do not pair up:", *lines]))


def _unpaired(
    link: tuple[int, int], sends: Sequence[_Standing], receives: Sequence[_Standing]
) -> Iterator[str]:
    for at, (sent, received) in enumerate(zip_longest(sends, receives)):
        if sent is None or received is None or not _same(sent[1], received[1]):
            ends = f"{_standing(link[0], sent)} meets {_standing(link[1], received)}"
            yield f"number {at} from rank {link[0]} to rank {link[1]}: {ends}"
            return


def _standing(rank: int, at: _Standing | None) -> str:
    return f"rank {rank}, position {at[0]}: {at[1]}" if at else "nothing"


def check_links(
    programs: Sequence[RankProgram],
    sends: Sends = Sends.RENDEZVOUS,
    channel: Callable[[int, int], Hashable] = directed_pair,
) -> None:
    """Nothing, if all transfers of `programs` get through over first-in-first-out links.

    Transfers carry no tags: on a link the n-th receive gets the n-th send. Sends never hold up their
    rank, a receive does until its value is there. With rendez-vous each rank works off what it
    issued on a channel, sends and receives alike, one after another (as a NCCL communicator does).

    Args:
        programs: one per rank, as `fxpipe.schedules.lower.lower` makes them.
        sends: how a link takes a value.
        channel: (source rank, target rank) → the channel their transfers share. With
            rendez-vous, directed pairs of ranks are free of deadlock for every legal schedule;
            one channel per undirected pair is not, nor one per direction for all ranks.

    Raises:
        DeadlockError: if a transfer never gets through; the message says who waits for what.
    """
    _Links(programs, sends, channel).finish()


class _Links:
    def __init__(
        self,
        programs: Sequence[RankProgram],
        sends: Sends,
        channel: Callable[[int, int], Hashable],
    ) -> None:
        self._programs = {program.rank: program.actions for program in programs}
        self._sends = sends
        self._channel = channel
        self._homes = homes_of(programs)
        self._positions = dict.fromkeys(self._programs, 0)
        self._issued: dict[tuple[int, Hashable], deque[_Standing]] = {}
        """What a rank has issued on a channel and is not through yet."""
        self._buffers: dict[tuple[Hashable, int], deque[Transfer]] = {}
        """Values that lie on a channel for a rank (unbounded sends only)."""
        self._waiting: dict[int, Transfer] = {}
        """Rank → the receive that holds it up."""
        self._ready: list[int] = []

    def finish(self) -> None:
        """Run all programs to their ends, and all sends to theirs."""
        self._ready = list(self._programs)
        while self._ready:
            self._advance(self._ready.pop())
        stuck = [
            f"rank {rank}, position {queue[0][0]}: {queue[0][1]} is not through"
            + (f", with {len(queue) - 1} more behind it" if len(queue) > 1 else "")
            for (rank, _), queue in sorted(self._issued.items(), key=lambda item: item[0][0])
            if queue
        ]
        if stuck:
            lines = [f"  - {line}" for line in stuck]
            raise DeadlockError("\n".join([f"transfers block ({self._sends} links):", *lines]))

    def _advance(self, rank: int) -> None:
        """Let one rank go on until a receive holds it up."""
        actions = self._programs[rank]
        while self._positions[rank] < len(actions) and rank not in self._waiting:
            position = self._positions[rank]
            action = actions[position]
            self._positions[rank] += 1
            if isinstance(action, Transfer):
                self._issue(rank, position, action)

    def _issue(self, rank: int, position: int, action: Transfer) -> None:
        source, target = _ends(action, self._homes)
        channel = self._channel(source, target)
        if action.direction is Direction.RECV:
            self._waiting[rank] = action
        elif self._sends is Sends.UNBOUNDED:
            self._buffers.setdefault((channel, target), deque()).append(action)
            self._take(target, channel)
            return
        self._issued.setdefault((rank, channel), deque()).append((position, action))
        if self._sends is Sends.UNBOUNDED:
            self._take(rank, channel)
        else:
            self._settle(rank, channel)

    def _take(self, rank: int, channel: Hashable) -> None:
        """Let a rank's receive have the value that lies first on its channel."""
        buffer = self._buffers.get((channel, rank))
        queue = self._issued.get((rank, channel))
        if buffer and queue and _same(buffer[0], queue[0][1]):
            buffer.popleft()
            self._through(rank, queue)

    def _settle(self, rank: int, channel: Hashable) -> None:
        """Let through every transfer that stands first at both its ends, from this rank's on."""
        look = [rank]
        while look:
            one = look.pop()
            queue = self._issued.get((one, channel))
            if not queue:
                continue
            head = queue[0][1]
            source, target = _ends(head, self._homes)
            other = target if one == source else source
            far = self._issued.get((other, channel))
            if far and far[0][1].direction is not head.direction and _same(far[0][1], head):
                self._through(one, queue)
                self._through(other, far)
                look += [one, other]

    def _through(self, rank: int, queue: deque[_Standing]) -> None:
        """Take what heads a queue off it; the rank goes on if that held it up."""
        _, transfer = queue.popleft()
        if self._waiting.get(rank) is transfer:
            del self._waiting[rank]
            self._ready.append(rank)


def _ends(transfer: Transfer, homes: dict[tuple[int, int], int]) -> tuple[int, int]:
    """Source rank, target rank."""
    m = transfer.micro_batch
    return homes[transfer.source, m], homes[transfer.target, m]


def _same(one: Transfer, other: Transfer) -> bool:
    """Whether two transfers are the ends of one."""
    return (one.payload, one.value, one.source, one.target, one.micro_batch) == (
        other.payload,
        other.value,
        other.source,
        other.target,
        other.micro_batch,
    )
