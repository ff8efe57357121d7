"""Weight halves put where a rank waits: the same forwards and input halves, made for other costs."""

from __future__ import annotations

from collections import deque
from typing import Final

from fxpipe.ir.action import Kind
from fxpipe.planner.search.problem import Orders, Problem

FILLS: Final = (1.0, 0.5, 0.0)
"""Shares of a weight half's time that a gap has to have for it."""


def refilled(problem: Problem, orders: Orders, fill: float) -> Orders | None:
    """An order with its weight halves taken out and put in again; None if memory leaves no way on.

    ::

        rank 0   F0 F1 .  I0 W0 .  I1 W1        W0 of the last rank holds up I1, for which the first
        rank 1   .  F0 I0 W0 F1 I1 W1 .         one waits: at the end there is time for it

        rank 0   F0 F1 .  I0 W0 I1 W1           where there is room for two micro-batches
        rank 1   .  F0 I0 F1 I1 W0 W1

    Schedules with a name place them for equal halves and free links. Here a rank runs one, the first
    owed, where it would else wait for a share of its time or longer, and as many as are in the way of
    what needs their memory; the rest at the end. Everything else keeps its order.

    O(actions × needs).

    Args:
        problem: stages on ranks.
        orders: a legal order with split backwards.
        fill: how long a gap has to be for a weight half, in shares of its time.
    """
    run = _Refill(problem, orders, fill)
    return run.rows if run.go() else None


class _Refill:
    """The ranks' rows while they grow."""

    def __init__(self, problem: Problem, orders: Orders, fill: float) -> None:
        self._tables, self._limits, self._fill = problem.scorer.tables, problem.limits, fill
        self._latency = problem.cluster.latency
        per_kind = problem.cut.num_stages * problem.micro_batches
        first = problem.row(Kind.BACKWARD_WEIGHT, 0)
        self._weights = range(first, first + per_kind)
        self._inputs = range(problem.row(Kind.BACKWARD_INPUT, 0), first)
        self._to_weight = first - self._inputs.start
        self._fixed = [[n for n in row if n not in self._weights] for row in orders]
        self._at = [0] * len(orders)
        self._owed: list[deque[int]] = [deque() for _ in orders]
        self._now = [0.0] * len(orders)
        self._kept = [0.0] * len(orders)
        self._moments = [-1.0] * self._tables.moments
        self._free = [0.0] * self._tables.links
        self._waiting: dict[int, list[int]] = {}
        self._ready = list(range(len(orders)))
        self.rows: Orders = [[] for _ in orders]

    def go(self) -> bool:
        """Whether every rank comes to its end within its memory."""
        while self._ready:
            if not self._advance(self._ready.pop()):
                return False
        for rank, owed in enumerate(self._owed):
            while owed:
                self._put_weight(rank)
        return all(at == len(row) for at, row in zip(self._at, self._fixed, strict=True))

    def _advance(self, rank: int) -> bool:
        """A rank until it waits for a moment that has not come; whether memory was enough."""
        row = self._fixed[rank]
        while self._at[rank] < len(row):
            number = row[self._at[rank]]
            arrival = self._arrival(rank, number)
            if arrival is None:
                return True
            if not self._make_room(rank, number):
                return False
            self._fill_gap(rank, arrival)
            self._put(rank, number, max(self._now[rank], arrival))
            self._at[rank] += 1
        return True

    def _arrival(self, rank: int, number: int) -> float | None:
        """When all is there that an action needs; None if that is not known yet."""
        arrival = 0.0
        for moment, later in self._tables.needs[number]:
            came = self._moments[moment]
            if came < 0.0:
                self._waiting.setdefault(moment, []).append(rank)
                return None
            arrival = max(arrival, came + later)
        return arrival

    def _make_room(self, rank: int, number: int) -> bool:
        """Weight halves until an action has room; whether it has."""
        more = self._tables.more[number]
        while more and self._kept[rank] + more > self._limits[rank]:
            if not self._owed[rank]:
                return False
            self._put_weight(rank)
        return True

    def _fill_gap(self, rank: int, arrival: float) -> None:
        owed, seconds = self._owed[rank], self._tables.seconds
        while owed:
            gap = arrival - self._now[rank]
            if gap <= 0.0 or gap < self._fill * seconds[owed[0]]:
                return
            self._put_weight(rank)

    def _put_weight(self, rank: int) -> None:
        self._put(rank, self._owed[rank].popleft(), self._now[rank])

    def _put(self, rank: int, number: int, start: float) -> None:
        """Append an action to a rank's row."""
        tables = self._tables
        self._now[rank] = end = start + tables.seconds[number]
        self._kept[rank] += tables.more[number] - tables.less[number]
        self.rows[rank].append(number)
        if number in self._inputs:
            self._owed[rank].append(number + self._to_weight)
        moment = tables.makes[number]
        if moment >= 0:
            self._moments[moment] = end
            self._ready += self._waiting.pop(moment, ())
        for moment, link, busy in tables.sends[number]:
            self._free[link] = max(end, self._free[link]) + busy
            self._moments[moment] = self._free[link] + self._latency
            self._ready += self._waiting.pop(moment, ())
