"""List scheduling: always the most urgent action that can start, as memory allows."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from fxpipe.ir.action import Kind
from fxpipe.planner.search.problem import Orders, Problem
from fxpipe.simulator.tables import Need

_NEVER: Final = math.inf
_Choice: TypeAlias = tuple[float, int, int]
"""Start, stage, number of the action."""


@dataclass(frozen=True)
class Rules:
    """What list scheduling goes by.

    Attributes:
        urgency: number of an action → the lower, the sooner (as if: when it should start).
        split: whether backwards are split.
        fill: a rank runs a weight half where it would else wait for this share of its time, or longer.
        rivals: weight halves do not only fill gaps: they go first where they are more urgent.
        patience: 0: what can start first goes first, urgency decides between equals; 1: urgency decides
            between all that is known to come; between these, a mix.
        pace: seconds between the entries of two micro-batches, at least: where memory is short, those
            that come too early only take the room of others.
    """

    urgency: Sequence[float]
    split: bool = True
    fill: float = 1.0
    rivals: bool = False
    patience: float = 0.0
    pace: float = 0.0


def list_schedule(problem: Problem, rules: Rules) -> Orders | None:
    """The order that rules lead to; None if memory leaves no way on.

    Step by step the action that starts first is taken. A rank chooses among the next micro-batch of each
    stage's forward and backward (input half): it knows what is under way to it, but not what will be
    sent later. A forward has to leave room for all that its micro-batch and those before it will keep on
    the rank, so that the oldest always gets to its end; weight halves are run while a rank waits, and
    where one is in the way of a forward. A recomputation runs when its backward's gradient is there.

    O(actions × (stages of a rank + log ranks)).

    Args:
        problem: stages on ranks, without replicas.
        rules: urgencies and habits.
    """
    return _Lists(problem, rules).run()


class _Lists:
    """The ranks' rows while they grow."""

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self._tables, self._rules, self._limits = problem.scorer.tables, rules, problem.limits
        self._latency, self._count = problem.cluster.latency, problem.micro_batches
        self._stages = [problem.placement.stages_of(rank) for rank in problem.ranks]
        back = Kind.BACKWARD_INPUT if rules.split else Kind.BACKWARD
        self._lanes = _Lanes(problem, rules.split)
        self._needs = list(_needs(problem, back))
        self._extra = _extras(problem)
        self._wakes = _wakes(problem)
        self._moments = [-1.0] * self._tables.moments
        self._enter(problem)
        self._free = [0.0] * self._tables.links
        self._now = [0.0] * len(problem.ranks)
        self._kept = [0.0] * len(problem.ranks)
        self._due = [_NEVER] * len(problem.ranks)
        """When each rank is called next."""
        self._calls: list[tuple[float, int]] = []
        self._rows: Orders = [[] for _ in problem.ranks]

    def _enter(self, problem: Problem) -> None:
        """Let forwards that wait for nobody wait for the pace: for moments known from the start."""
        if self._rules.pace:
            paced = [self._rules.pace * m for m in range(self._count)]
            for stage in range(problem.cut.num_stages):
                for m in range(self._count):
                    number = problem.number(Kind.FORWARD, stage, m)
                    if not self._needs[number]:
                        self._needs[number] = ((len(self._moments) + m, 0.0),)
            self._moments += paced

    def run(self) -> Orders | None:
        """Everything placed, or None."""
        for rank in range(len(self._rows)):
            self._call(rank)
        while self._calls:
            at, rank = heapq.heappop(self._calls)
            if at == self._due[rank]:
                self._due[rank] = _NEVER
                choice = self._choose(rank)
                if choice is not None and choice[0] <= at:
                    self._put(rank, *choice)
                    self._call(rank)
                elif choice is not None:
                    self._due[rank] = choice[0]
                    heapq.heappush(self._calls, (choice[0], rank))
        return None if self._lanes.left else self._rows

    def _call(self, rank: int) -> None:
        """Have a rank looked at when it can do something."""
        choice = self._choose(rank)
        if choice is not None and choice[0] < self._due[rank]:
            self._due[rank] = choice[0]
            heapq.heappush(self._calls, (choice[0], rank))

    def _choose(self, rank: int) -> _Choice | None:
        """What a rank does next, and when; None if it has to wait for others. The hot loop."""
        now, urgency, patience = self._now[rank], self._rules.urgency, self._rules.patience
        more, moments, needs = self._tables.more, self._moments, self._needs
        left = self._limits[rank] - self._kept[rank]
        options = self._lanes.options
        best: _Choice | None = None
        least, equal, blocked = _NEVER, _NEVER, _NEVER
        for stage in self._stages[rank]:
            for number in options[stage]:
                start = now
                for moment, later in needs[number]:
                    came = moments[moment]
                    if came < 0.0:
                        break
                    if came + later > start:
                        start = came + later
                else:
                    if more[number] and more[number] + self._room(rank, stage, number) > left:
                        blocked = min(blocked, start)
                        continue
                    value = start + patience * (urgency[number] - start)
                    if value < least or (value == least and urgency[number] < equal):
                        least, equal, best = value, urgency[number], (start, stage, number)
        weight = self._weight(rank)
        return best if weight is None else self._either(best, (now, *weight), blocked)

    def _room(self, rank: int, stage: int, number: int) -> float:
        """Bytes that have to stay free after the start of an action: none after a recomputation's.

        For a forward: what its micro-batch, and those before it, will keep in the rank's other stages,
        and the most that a recomputation adds.
        """
        if not self._lanes.is_forward(stage, number):
            return 0.0
        m, room, more = number % self._count, self._extra[rank], self._tables.more
        for other in self._stages[rank]:
            if other != stage:
                forward = self._lanes.forward[other]
                if forward < self._lanes.last_forward[other] and forward % self._count <= m:
                    room += more[forward]
        return room

    def _weight(self, rank: int) -> tuple[int, int] | None:
        """Stage and number of the most urgent weight half that a rank owes."""
        owed, urgency = self._lanes.owed, self._rules.urgency
        best: tuple[int, int] | None = None
        for stage in self._stages[rank]:
            number = owed[stage]
            if number >= 0 and (best is None or urgency[number] < urgency[best[1]]):
                best = stage, number
        return best

    def _either(self, best: _Choice | None, weight: _Choice, blocked: float) -> _Choice:
        """The better one of what is next and a weight half that could start now."""
        if best is None or blocked <= best[0]:
            return weight
        urgency = self._rules.urgency
        if self._rules.rivals and urgency[weight[2]] < urgency[best[2]]:
            return weight
        gap = best[0] - weight[0]
        fills = gap > 0.0 and gap >= self._rules.fill * self._tables.seconds[weight[2]]
        return weight if fills else best

    def _put(self, rank: int, start: float, stage: int, number: int) -> None:
        """Append an action to a rank's row."""
        tables = self._tables
        end = start + tables.seconds[number]
        self._now[rank] = end
        self._kept[rank] += tables.more[number] - tables.less[number]
        self._rows[rank].append(number)
        self._lanes.take(stage, number)
        if tables.makes[number] >= 0:
            self._moments[tables.makes[number]] = end
        for moment, link, busy in tables.sends[number]:
            self._free[link] = max(end, self._free[link]) + busy
            self._moments[moment] = self._free[link] + self._latency
        for other in self._wakes[number // self._count]:
            if other != rank:
                self._call(other)


class _Lanes:
    """How far every stage is, its micro-batches in ascending order.

    Attributes:
        options: stage → the numbers of its next forward and of its next backward, or, before that, of
            the recomputation.
        owed: stage → the number of its next weight half; -1 if none is owed.
        forward: stage → the number of its next forward.
        last_forward: stage → the number after that of its last forward.
        left: actions that are not taken yet.
    """

    def __init__(self, problem: Problem, split: bool) -> None:
        stages, count = range(problem.cut.num_stages), problem.micro_batches
        self._count = count
        self._split = split
        self.forward = [problem.row(Kind.FORWARD, stage) for stage in stages]
        back = Kind.BACKWARD_INPUT if split else Kind.BACKWARD
        self._back = [problem.row(back, stage) for stage in stages]
        self._weight = [problem.row(Kind.BACKWARD_WEIGHT, stage) for stage in stages]
        self._again = [
            problem.row(Kind.RECOMPUTE, stage) if stage in problem.recomputed else -1
            for stage in stages
        ]
        self.last_forward = [number + count for number in self.forward]
        self._last_back = [number + count for number in self._back]
        self._owing = [0] * len(stages)
        self.options = [[forward] for forward in self.forward]
        self.owed = [-1] * len(stages)
        self.left = count * (len(stages) * (3 if split else 2) + len(problem.recomputed))

    def is_forward(self, stage: int, number: int) -> bool:
        """Whether an action is the stage's next forward."""
        return number == self.forward[stage] < self.last_forward[stage]

    def take(self, stage: int, number: int) -> None:
        """Go on to what follows an action."""
        self.left -= 1
        if number == self.owed[stage]:
            self._weight[stage] += 1
            self._owing[stage] -= 1
        elif self.is_forward(stage, number):
            self.forward[stage] += 1
        elif number == self._back[stage]:
            self._back[stage] += 1
            self._owing[stage] += self._split
        else:
            self._again[stage] += 1
        self.owed[stage] = self._weight[stage] if self._owing[stage] else -1
        self.options[stage] = self._options(stage)

    def _options(self, stage: int) -> list[int]:
        found = []
        if self.forward[stage] < self.last_forward[stage]:
            found.append(self.forward[stage])
        back, again = self._back[stage], self._again[stage]
        if back < self._last_back[stage]:
            fresh = again >= 0 and again % self._count == back % self._count
            found.append(again if fresh else back)
        return found


def _needs(problem: Problem, back: Kind) -> Iterator[tuple[Need, ...]]:
    """What every action waits for; a recomputation, so that it ends when its gradient comes."""
    tables = problem.scorer.tables
    again = problem.row(Kind.RECOMPUTE, 0)
    for number, needs in enumerate(tables.needs):
        if number >= again:
            seconds = tables.seconds[number]
            later = tables.needs[number - again + problem.row(back, 0)]
            yield (
                *needs,
                *((m, after - seconds) for m, after in later if m != tables.makes[number]),
            )
        else:
            yield needs


def _extras(problem: Problem) -> list[float]:
    """Rank → the most that one of its recomputations adds to what is kept."""
    more = problem.scorer.tables.more
    extras: list[float] = []
    for rank in problem.ranks:
        own = problem.recomputed.intersection(problem.placement.stages_of(rank))
        extras.append(max((more[problem.row(Kind.RECOMPUTE, s)] for s in own), default=0))
    return extras


def _wakes(problem: Problem) -> list[list[int]]:
    """Row of numbers → the ranks that wait for a result of its actions."""
    tables, count = problem.scorer.tables, problem.micro_batches
    per_kind = problem.cut.num_stages * count
    waiting: dict[int, set[int]] = {}
    for number in range(0, len(tables.needs), count):
        rank = problem.placement.rank_of(number % per_kind // count)
        for moment, _ in tables.needs[number]:
            waiting.setdefault(moment, set()).add(rank)
    wakes = []
    for number in range(0, len(tables.needs), count):
        made = [tables.makes[number], *(moment for moment, _, _ in tables.sends[number])]
        wakes.append(sorted({rank for moment in made for rank in waiting.get(moment, ())}))
    return wakes
