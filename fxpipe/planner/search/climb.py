"""Local search: one order made better move by move, judged by the simulator."""

from __future__ import annotations

from random import Random
from typing import Final

from fxpipe.planner.search.critical import Critical
from fxpipe.planner.search.problem import Orders, Problem

_WARMTH: Final = 0.01
"""Share of the makespan that a step may lose at first."""


class Climb:
    """A walk from one order to better ones.

    A step moves an action of a rank before or after others, mostly one of those that decide the
    makespan: what another rank waits for goes to an earlier place, what nobody waits for out of its way.
    Steps that lose little are taken, too, ever less of them (simulated annealing). Micro-batches of a
    stage keep their order, memory its limits.

    Attributes:
        best: the best order so far.
        score: what it comes to.
    """

    def __init__(self, problem: Problem, orders: Orders, random: Random, steps: int) -> None:
        """A walk of so many steps, from orders that fit."""
        self._problem = problem
        self._random = random
        self._steps = max(1, steps)
        self._done = 0
        self._orders = [list(row) for row in orders]
        self._score = problem.score(orders)
        self.best, self.score = self._orders, self._score
        self._critical = Critical(problem)
        self._critical.look(self._orders)
        count = problem.micro_batches
        self._stages, self._count = problem.cut.num_stages, count

    @property
    def over(self) -> bool:
        """Whether all steps are done."""
        return self._done >= self._steps

    def step(self) -> bool:
        """Try one move; whether that made the best one better."""
        self._done += 1
        rank, row = self._moved()
        if row == self._orders[rank]:
            return False
        tried = list(self._orders)
        tried[rank] = row
        score = self._problem.score(tried)
        warmth = _WARMTH * self._score.makespan * (1.0 - self._done / self._steps) ** 2
        limit = self._score.makespan + warmth * self._random.random() ** 2
        if not self._problem.fits(score) or score.makespan > limit:
            return False
        self._orders, self._score = tried, score
        self._critical.look(tried)
        if score.makespan < self.score.makespan:
            self.best, self.score = tried, score
            return True
        return False

    def _moved(self) -> tuple[int, list[int]]:
        """A rank and its row after a move."""
        random = self._random
        if random.random() < 0.75:
            rank, at, to = self._critical.move(random)
        else:
            rank = random.randrange(len(self._orders))
            at = random.randrange(len(self._orders[rank]))
            to = at + random.choice((-3, -2, -1, 1, 2, 3))
        row = list(self._orders[rank])
        self._shift(row, at, max(0, min(to, len(row) - 1)))
        return rank, row

    def _shift(self, row: list[int], at: int, to: int) -> None:
        """Move an action as far towards a place as its own stage's order allows."""
        number = row[at]
        step = 1 if to > at else -1
        while at != to and not self._bound(number, row[at + step]):
            row[at] = row[at + step]
            at += step
        row[at] = number

    def _bound(self, one: int, other: int) -> bool:
        """Whether two actions keep their order: of one stage, with kind or micro-batch in common."""
        lane, m = divmod(one, self._count)
        other_lane, other_m = divmod(other, self._count)
        if lane == other_lane:
            return True
        return m == other_m and lane % self._stages == other_lane % self._stages
