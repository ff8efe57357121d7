"""Whether the transfers of rank programs get through when every link is a queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from enum import StrEnum

from fxpipe.errors import DeadlockError
from fxpipe.ir.action import Compute, Direction, Transfer
from fxpipe.ir.program import RankProgram


class Sends(StrEnum):
    """How a link takes a value."""

    UNBOUNDED = "unbounded"
    """It keeps any number of values until they are asked for."""
    RENDEZVOUS = "rendez-vous"
    """It is occupied until the other end asks for the value; the sending rank goes on."""


def directed_pair(source: int, target: int) -> Hashable:
    """The link from one rank to another: one per direction."""
    return (source, target)


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
        self._programs = programs
        self._sends = sends
        self._channel = channel
        self._homes = {
            action.stage: program.rank
            for program in programs
            for action in program.actions
            if isinstance(action, Compute)
        }
        self._positions = [0] * len(programs)
        self._posted = [False] * len(programs)
        """Whether the receive a rank stands at is issued."""
        self._issued: dict[tuple[int, Hashable], deque[Transfer]] = {}
        """What a rank has issued on a channel and is not through yet."""
        self._buffers: dict[tuple[Hashable, int], deque[Transfer]] = {}
        """Values that lie on a channel for a rank (unbounded sends only)."""

    def finish(self) -> None:
        """Run all programs to their ends, and all sends to theirs."""
        while any([self._advance(at) for at in range(len(self._programs))]):
            pass
        waiting = [
            f"rank {rank} waits for {queue[0]}"
            + (f", with {len(queue) - 1} more behind it" if len(queue) > 1 else "")
            for (rank, _), queue in self._issued.items()
            if queue
        ]
        if waiting:
            raise DeadlockError(
                "\n".join(
                    [f"transfers block ({self._sends} links):", *(f"  - {w}" for w in waiting)]
                )
            )

    def _advance(self, at: int) -> bool:
        """Let one rank go on as far as it can; whether it did anything."""
        actions = self._programs[at].actions
        start = self._positions[at]
        while self._positions[at] < len(actions):
            action = actions[self._positions[at]]
            if isinstance(action, Transfer) and not self._transfer(at, action):
                break
            self._positions[at] += 1
        return self._positions[at] > start

    def _transfer(self, at: int, action: Transfer) -> bool:
        """Issue a transfer, once; whether the rank may go on."""
        source, target = self._homes[action.source], self._homes[action.target]
        channel = self._channel(source, target)
        if self._sends is Sends.UNBOUNDED and action.direction is Direction.SEND:
            self._buffers.setdefault((channel, target), deque()).append(action)
            return True
        queue = self._issued.setdefault((self._programs[at].rank, channel), deque())
        if not self._posted[at]:
            queue.append(action)
        if self._sends is Sends.UNBOUNDED:
            self._take(queue, self._buffers.setdefault((channel, target), deque()))
        else:
            self._settle(channel)
        self._posted[at] = action.direction is Direction.RECV and action in queue
        return not self._posted[at]

    def _take(self, queue: deque[Transfer], buffer: deque[Transfer]) -> None:
        """Let a receive have the value that lies first on its channel."""
        if buffer and _same(buffer[0], queue[0]):
            buffer.popleft()
            queue.popleft()

    def _settle(self, channel: Hashable) -> None:
        """Let through every transfer that stands first at both its ends, until none does."""
        moved = True
        while moved:
            moved = False
            for (_, on), queue in self._issued.items():
                if on == channel and queue and queue[0].direction is Direction.SEND:
                    other = self._issued.get((self._homes[queue[0].target], channel))
                    if other and other[0].direction is Direction.RECV and _same(queue[0], other[0]):
                        queue.popleft()
                        other.popleft()
                        moved = True


def _same(one: Transfer, other: Transfer) -> bool:
    """Whether two transfers are the ends of one."""
    return (one.payload, one.value, one.source, one.target, one.micro_batch) == (
        other.payload,
        other.value,
        other.source,
        other.target,
        other.micro_batch,
    )
