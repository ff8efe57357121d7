"""The longest ways of one micro-batch through the stages: what no order of the ranks shortens."""

from __future__ import annotations

from collections.abc import Sequence

from fxpipe.ir.action import Kind
from fxpipe.planner.search.problem import Problem


class Ways:
    """What one micro-batch's actions wait for, and how long that takes at least.

    Attributes:
        before: action → (action, seconds between its end and the start of the other) that it waits for.
        heads: action → seconds from the start of the step to its start.
        tails: action → seconds from its end to the end of all that waits for it.
    """

    def __init__(self, problem: Problem, micro_batch: int = 0, *, split: bool = True) -> None:
        """The ways of a micro-batch, with backwards in one or in two halves."""
        self._tables = problem.scorer.tables
        self._back = Kind.BACKWARD_INPUT if split else Kind.BACKWARD
        self._problem = problem
        self._micro_batch = micro_batch
        self.order = self._actions(split)
        """Every action after all that it waits for."""
        self.before = self._arcs()
        self.heads = self._longest(self.order)
        self.tails = self._tails()

    def number(self, kind: Kind, stage: int) -> int:
        """The number of an action of the micro-batch."""
        return self._problem.number(kind, stage, self._micro_batch)

    def life(self, stage: int) -> float:
        """Seconds from the end of a stage's forward to the end of its backward (input half)."""
        first, last = self.number(Kind.FORWARD, stage), self.number(self._back, stage)
        between = self.order[self.order.index(first) : self.order.index(last) + 1]
        starts = self._longest(between, only=first)
        return starts[last] + self._tables.seconds[last] - self._tables.seconds[first]

    @property
    def length(self) -> float:
        """Seconds of the longest way from the first start to the last end."""
        return max(self.heads[n] + self._tables.seconds[n] + self.tails[n] for n in self.order)

    def _actions(self, split: bool) -> list[int]:
        stages = range(self._problem.cut.num_stages)
        order = [self.number(Kind.FORWARD, stage) for stage in stages]
        for stage in reversed(stages):
            if stage in self._problem.recomputed:
                order.append(self.number(Kind.RECOMPUTE, stage))
            order.append(self.number(self._back, stage))
        if split:
            order += [self.number(Kind.BACKWARD_WEIGHT, stage) for stage in stages]
        return order

    def _arcs(self) -> dict[int, list[tuple[int, float]]]:
        """The actions, not the moments, that each action waits for."""
        makers: dict[int, tuple[int, float]] = {}
        latency = self._problem.cluster.latency
        for number in self.order:
            makers[self._tables.makes[number]] = (number, 0.0)
            for moment, _, busy in self._tables.sends[number]:
                makers[moment] = (number, busy + latency)
        return {
            number: [
                (makers[moment][0], makers[moment][1] + later)
                for moment, later in self._tables.needs[number]
            ]
            for number in self.order
        }

    def _longest(self, order: Sequence[int], only: int | None = None) -> dict[int, float]:
        """The earliest starts, or (`only`) those after one action alone; -inf if not after it."""
        starts: dict[int, float] = {}
        for number in order:
            given = [0.0] if only in (None, number) else []
            waits = [
                starts[source] + self._tables.seconds[source] + later
                for source, later in self.before[number]
                if source in starts
            ]
            starts[number] = max([*given, *waits], default=float("-inf"))
        return starts

    def _tails(self) -> dict[int, float]:
        tails = dict.fromkeys(self.order, 0.0)
        for number in reversed(self.order):
            after = self._tables.seconds[number] + tails[number]
            for source, later in self.before[number]:
                tails[source] = max(tails[source], later + after)
        return tails
