"""One micro-batch's starts, such that all others can follow, each a period later: modulo scheduling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Final, TypeAlias

from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.ways import Ways

Starts: TypeAlias = dict[int, float]
"""Action of the first micro-batch → its start."""

_CLOSE: Final = 1e-9
_WRONG: Final = 0.02
"""How often a step that keeps more is taken all the same."""


class Circle:
    """A rank's time, wound up: what stands at a moment stands there again every period.

    period 10, taken from 2 to 5 and from 8 to 11, which is 1 again; gaps from 1 to 2 and from 5 to 8

    0 1 2 3 4 5 6 7 8 9
    █ . █ █ █ . . . █ █
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._taken: list[tuple[float, float]] = []
        """Starts within the period, and ends, in order."""

    def starts(self, earliest: float, seconds: float) -> list[float]:
        """Moments from `earliest` on at which so many seconds are free, all within a period.

        The first is the earliest one; the others are those next to what is taken already, where no gap
        is left that nothing fits into.
        """
        if not self._taken:
            return [earliest] if seconds <= self._period + _CLOSE else []
        found: set[float] = set()
        for start, end in self._gaps():
            room = end - start - seconds
            if room >= -_CLOSE:
                into = self._wound(earliest - start)
                if into <= room:
                    found.add(earliest)
                found.update(earliest + self._wound(at - into) for at in (0.0, max(0.0, room)))
        return sorted(found)

    def take(self, start: float, seconds: float) -> None:
        """Let nothing else have so many seconds."""
        if seconds > 0.0:
            start = self._wound(start)
            self._taken = sorted([*self._taken, (start, start + seconds)])

    def _gaps(self) -> list[tuple[float, float]]:
        starts = [start for start, _ in self._taken[1:]] + [self._taken[0][0] + self._period]
        return [(end, start) for (_, end), start in zip(self._taken, starts, strict=True)]

    def _wound(self, moment: float) -> float:
        rest = moment % self._period
        return 0.0 if self._period - rest < _CLOSE else rest


class Periodic:
    """Starts of one micro-batch for a period, and how much is then kept when all follow."""

    def __init__(self, problem: Problem, ways: Ways, period: float) -> None:
        """Nothing placed yet.

        Args:
            problem: stages on ranks, without replicas.
            ways: what the actions of a micro-batch wait for.
            period: seconds from one micro-batch to the next.
        """
        self._problem = problem
        self._ways = ways
        self._period = period
        self._tables = problem.scorer.tables
        self._ranks = {number: problem.rank_of(number) for number in ways.order}

    def starts(self, later: Mapping[int, int]) -> Starts | None:
        """Every action after what it waits for, as soon as its rank is free; None if it never is.

        Args:
            later: action → how many of the moments that it could start at are left out.
        """
        circles = [Circle(self._period) for _ in self._problem.ranks]
        seconds, starts = self._tables.seconds, Starts()
        for number in self._ways.order:
            waits = (starts[s] + seconds[s] + hop for s, hop in self._ways.before[number])
            circle = circles[self._ranks[number]]
            moments = circle.starts(max(waits, default=0.0), seconds[number])
            if not moments:
                return None
            starts[number] = moments[min(later.get(number, 0), len(moments) - 1)]
            circle.take(starts[number], seconds[number])
        return starts

    def kept(self, starts: Starts) -> float:
        """The most that a rank keeps once micro-batches follow each other, as share of its limit."""
        tables, period = self._tables, self._period
        changes: list[list[tuple[float, float]]] = [[] for _ in self._problem.ranks]
        always = [0.0 for _ in self._problem.ranks]
        """What is kept at every turn's beginning."""
        for number, start in starts.items():
            rank = self._ranks[number]
            end = start + tables.seconds[number]
            more, less = float(tables.more[number]), float(tables.less[number])
            for moment, change in ((start, more), (end, -less)):
                turns = math.floor(moment / period + _CLOSE)
                always[rank] -= turns * change
                changes[rank].append((round(moment - turns * period, 9), change))
        shares = []
        for now, row, limit in zip(always, changes, self._problem.limits, strict=True):
            peak = now
            for _, change in sorted(row):
                now += change
                peak = max(peak, now)
            shares.append(peak / limit if limit > 0 else math.inf if peak > 0 else 0.0)
        return max(shares)

    def search(self, random: Random, tries: int) -> Starts | None:
        """Starts under which memory is enough, or the closest that is found; None if there are none."""
        later: dict[int, int] = {}
        best = self.starts(later)
        least = now = self._cost(best)
        for _ in range(tries):
            if least[0] <= 1.0 + _CLOSE:
                break
            tried = dict(later)
            for _ in range(random.choice((1, 1, 2, 3))):
                number = random.choice(self._ways.order)
                tried[number] = random.choice((0, 0, 1, 1, 2, 3))
            starts = self.starts(tried)
            cost = self._cost(starts)
            if cost[0] <= now[0] or random.random() < _WRONG:
                later, now = tried, cost
            if cost < least:
                best, least = starts, cost
        return best

    def _cost(self, starts: Starts | None) -> tuple[float, float]:
        """Memory first, then the time until the micro-batch is done."""
        if starts is None:
            return math.inf, math.inf
        last = max(start + self._tables.seconds[number] for number, start in starts.items())
        return round(self.kept(starts), 9), round(last, 9)
