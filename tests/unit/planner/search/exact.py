"""The shortest step there is, by trying everything: an oracle for problems of a few dozen actions.

Every order of the ranks, with all started as early as it can be, is one sequence of the actions by
start. They are put together depth first, micro-batches of a stage ascending (they are alike: that costs
nothing). A branch ends where its bound is no better than what is known, or where the same actions were
done before and nothing was later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fxpipe.ir.action import Kind
from fxpipe.planner.search.problem import Problem

State = tuple[float, ...]


def shortest(problem: Problem, *, full: bool = False, known: float = math.inf) -> float:
    """The least makespan of any legal order within the limits; infinite if there is none.

    Args:
        problem: without replicas, recomputation and busy links.
        full: whether backwards are whole instead of split.
        known: a makespan that is known to be possible.
    """
    return _Tree(problem, full, known).run()


class _Tree:
    def __init__(self, problem: Problem, full: bool, known: float) -> None:
        self.problem, self.best = problem, known
        self.tables = problem.scorer.tables
        stages = range(problem.cut.num_stages)
        halves = (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        kinds = (Kind.FORWARD, *((Kind.BACKWARD,) if full else halves))
        self.lanes = [problem.row(kind, stage) for kind in kinds for stage in stages]
        self.rank_of = [problem.placement.rank_of(stage) for _ in kinds for stage in stages]
        self.seen: dict[tuple[int, ...], list[State]] = {}

    def run(self) -> float:
        moments = [-1.0] * self.tables.moments
        ranks = len(self.problem.ranks)
        self._grow([0] * len(self.lanes), [0.0] * ranks, [0] * ranks, moments, 0.0)
        return self.best

    def _grow(
        self,
        done: list[int],
        now: list[float],
        kept: list[int],
        moments: list[float],
        begun: float,
    ) -> None:
        if all(count == self.problem.micro_batches for count in done):
            self.best = min(self.best, max(now))
            return
        if self._bound(done, now) >= self.best - 1e-9 or self._known(done, now, moments):
            return
        for start, lane in sorted(self._next(done, now, kept, moments)):
            if start < begun - 1e-12:
                continue  # the same order with this one earlier is another branch
            number, rank = self.lanes[lane] + done[lane], self.rank_of[lane]
            end = start + self.tables.seconds[number]
            later, kept_then, made = list(now), list(kept), list(moments)
            later[rank] = end
            kept_then[rank] += self.tables.more[number] - self.tables.less[number]
            if self.tables.makes[number] >= 0:
                made[self.tables.makes[number]] = end
            more = list(done)
            more[lane] += 1
            self._grow(more, later, kept_then, made, start)

    def _next(
        self, done: list[int], now: list[float], kept: list[int], moments: list[float]
    ) -> Iterator[tuple[float, int]]:
        for lane, first in enumerate(self.lanes):
            if done[lane] == self.problem.micro_batches:
                continue
            number, rank = first + done[lane], self.rank_of[lane]
            needs = self.tables.needs[number]
            if any(moments[moment] < 0.0 for moment, _ in needs):
                continue
            if kept[rank] + self.tables.more[number] > self.problem.limits[rank]:
                continue
            yield max([now[rank], *(moments[m] + later for m, later in needs)]), lane

    def _bound(self, done: list[int], now: list[float]) -> float:
        left = list(now)
        for lane, first in enumerate(self.lanes):
            count = self.problem.micro_batches - done[lane]
            left[self.rank_of[lane]] += count * self.tables.seconds[first]
        return max(left)

    def _known(self, done: list[int], now: list[float], moments: list[float]) -> bool:
        """Whether the same was done before, and no rank and no result was later.

        Of results only the end beyond what has passed everywhere matters.
        """
        passed = min(now)
        state = (*now, *(max(moment, passed) for moment in moments if moment >= 0.0))
        known = self.seen.setdefault(tuple(done), [])
        if any(all(a <= b for a, b in zip(one, state, strict=True)) for one in known):
            return True
        known[:] = [one for one in known if any(a < b for a, b in zip(one, state, strict=True))]
        known.append(state)
        return False
