"""The actions that decide a makespan, and the moves that could shorten it."""

from __future__ import annotations

from random import Random
from typing import Final

from fxpipe.planner.search.problem import Orders, Problem

_CLOSE: Final = 1e-9


class Critical:
    """The critical path of an order, in blocks: runs of one rank without a pause.

    ::

        rank 0   F0 F1 F2 ........    a block [F0 F1 F2] of rank 0, whose last action rank 1 waits for:
        rank 1            F2 I2 W2    F2 before F1 or F0, or one of these after F2, could be better
    """

    def __init__(self, problem: Problem) -> None:
        tables = problem.scorer.tables
        self._problem = problem
        self._seconds = tables.seconds
        self._needs = tables.needs
        latency = problem.cluster.latency
        self._makers: list[tuple[int, float]] = [(-1, 0.0)] * tables.moments
        for number, made in enumerate(tables.makes):
            if made >= 0:
                self._makers[made] = (number, 0.0)
            for moment, _, busy in tables.sends[number]:
                self._makers[moment] = (number, busy + latency)
        self._blocks: list[tuple[int, int, int]] = []
        """Rank, first and last place."""

    def look(self, orders: Orders) -> None:
        """Find the blocks of an order. O(actions)."""
        ends = self._problem.scorer.ends(orders)
        where = {n: (rank, at) for rank, row in enumerate(orders) for at, n in enumerate(row)}
        number = max((row[-1] for row in orders if row), key=ends.__getitem__)
        self._blocks = []
        while number >= 0:
            rank, last = where[number]
            first = last
            while first and self._follows(ends, orders[rank][first - 1], orders[rank][first]):
                first -= 1
            self._blocks.append((rank, first, last))
            number = self._awaited(ends, orders[rank][first])

    def move(self, random: Random) -> tuple[int, int, int]:
        """Rank, place and new place of an action whose move could shorten the path."""
        rank, first, last = random.choice(self._blocks)
        if random.random() < 0.5:
            return rank, last, random.randint(first, last)
        return rank, random.randint(first, last), last + random.choice((0, 0, 1, 2))

    def _follows(self, ends: list[float], before: int, after: int) -> bool:
        start = ends[after] - self._seconds[after]
        return start - ends[before] <= _CLOSE * max(1.0, start)

    def _awaited(self, ends: list[float], number: int) -> int:
        """The action that one starts after: the last of those it waits for; -1 if there is none."""
        found = [(ends[maker] + hop, maker) for maker, hop in self._waits(number)]
        return max(found, default=(0.0, -1))[1]

    def _waits(self, number: int) -> list[tuple[int, float]]:
        waits = []
        for moment, later in self._needs[number]:
            maker, hop = self._makers[moment]
            waits.append((maker, hop + later))
        return waits
