"""Ranks that do not slow each other down: each is run as far as it can go, in no order of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fxpipe.ir.action import Action, Compute, Direction, Kind, Transfer, Update
from fxpipe.ir.timeline import Span
from fxpipe.simulator.wires import Parcel, Wires, parcel_of

Work: TypeAlias = Sequence[Mapping[Kind, float]]
"""Stage → kind → seconds."""


class Apart:
    """The programs of all ranks, each with a clock of its own.

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
    ) -> None:
        self._programs = programs
        self._work = work
        self._updates = updates
        self._wires = wires
        self._now = [0.0] * len(programs)
        self._waiting: dict[Parcel, int] = {}
        self._ready: list[int] = []
        self.positions = [0] * len(programs)
        self.spans: list[list[Span]] = [[] for _ in programs]

    def run(self) -> None:
        """Advance every rank to its end, or to a receive whose value is never sent."""
        self._ready = list(range(len(self._programs)))
        while self._ready:
            self._advance(self._ready.pop())

    def _advance(self, rank: int) -> None:
        """Let one rank go on until it waits for a value not yet sent. The hot loop."""
        actions, work, spans = self._programs[rank], self._work, self.spans[rank]
        now, at, end = self._now[rank], self.positions[rank], len(self._programs[rank])
        arrivals = self._wires.arrivals
        while at < end:
            action = actions[at]
            start = now
            if type(action) is Compute:
                now = start + work[action.stage][action.kind]
                spans.append(Span(rank, action, start, now))
            elif type(action) is Transfer:
                parcel = parcel_of(action)
                if action.direction is Direction.SEND:
                    self._send(rank, action, parcel, now)
                elif parcel not in arrivals:
                    self._waiting[parcel] = rank
                    break
                elif arrivals[parcel] > now:
                    now = arrivals[parcel]
                    spans.append(Span(rank, action, start, now))
            elif type(action) is Update:
                now = start + self._updates[action.stage]
                if now > start:
                    spans.append(Span(rank, action, start, now))
            at += 1
        self._now[rank], self.positions[rank] = now, at

    def _send(self, rank: int, action: Transfer, parcel: Parcel, now: float) -> None:
        taken, arrival = self._wires.send(rank, parcel, now)
        if arrival > taken:
            self.spans[rank].append(Span(rank, action, taken, arrival))
        waiting = self._waiting.pop(parcel, None)
        if waiting is not None:
            self._ready.append(waiting)
