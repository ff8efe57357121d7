"""Ranks that slow each other down: all events of all ranks in order of time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from fxpipe.ir.action import Action, Compute, Direction, Transfer, Update
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.timeline import Span
from fxpipe.simulator.apart import Work
from fxpipe.simulator.clock import SharedClock
from fxpipe.simulator.wires import Parcel, Wires, parcel_of


class Together:
    """The programs of all ranks under one clock.

    Attributes:
        positions: how far each rank got.
        spans: per rank, what it did when.
    """

    def __init__(
        self,
        programs: Sequence[Sequence[Action]],
        work: Work,
        updates: Sequence[float],
        wires: Wires,
        cluster: Cluster,
    ) -> None:
        self._programs = programs
        self._work = work
        self._updates = updates
        self._wires = wires
        self._clock = SharedClock(cluster)
        self._since = [0.0] * len(programs)
        """When a rank came to the action it is at."""
        self._waiting: dict[Parcel, int] = {}
        self._wakes: list[tuple[float, int]] = []
        self.positions = [0] * len(programs)
        self.spans: list[list[Span]] = [[] for _ in programs]

    def run(self) -> None:
        """Advance every rank to its end, or to a receive whose value is never sent."""
        for rank in range(len(self._programs)):
            self._proceed(rank, 0.0)
        while True:
            wake = self._wakes[0][0] if self._wakes else math.inf
            if wake < self._clock.next_end():
                now, rank = heapq.heappop(self._wakes)
                self._proceed(rank, now)
            elif self._clock.next_end() < math.inf:
                now, rank = self._clock.finish()
                self._done(rank, now)
                self._proceed(rank, now)
            else:
                return

    def _proceed(self, rank: int, now: float) -> None:
        """Let an idle rank go on until it computes, waits or ends."""
        actions = self._programs[rank]
        while self.positions[rank] < len(actions):
            action = actions[self.positions[rank]]
            match action:
                case Compute():
                    self._since[rank] = now
                    self._clock.start(rank, self._work[action.stage][action.kind], now)
                    return
                case Transfer(direction=Direction.RECV):
                    if not self._receive(rank, action, now):
                        return
                case Transfer():
                    self._send(rank, action, now)
                case Update():
                    if self._updates[action.stage]:
                        self._since[rank] = now
                        self._clock.start(rank, self._updates[action.stage], now)
                        return
            self.positions[rank] += 1
            self._since[rank] = now

    def _done(self, rank: int, now: float) -> None:
        action = self._programs[rank][self.positions[rank]]
        self.spans[rank].append(Span(rank, action, self._since[rank], now))
        self.positions[rank] += 1
        self._since[rank] = now

    def _send(self, rank: int, send: Transfer, now: float) -> None:
        parcel = parcel_of(send)
        start, arrival = self._wires.send(rank, parcel, now)
        if arrival > start:
            self.spans[rank].append(Span(rank, send, start, arrival))
        waiting = self._waiting.pop(parcel, None)
        if waiting is not None:
            heapq.heappush(self._wakes, (arrival, waiting))

    def _receive(self, rank: int, receive: Transfer, now: float) -> bool:
        """Whether the value is there; if not, the rank will be woken."""
        parcel = parcel_of(receive)
        arrival = self._wires.arrivals.get(parcel)
        if arrival is None:
            self._waiting[parcel] = rank
        elif arrival > now:
            heapq.heappush(self._wakes, (arrival, rank))
        else:
            if now > self._since[rank]:
                self.spans[rank].append(Span(rank, receive, self._since[rank], now))
            return True
        return False
