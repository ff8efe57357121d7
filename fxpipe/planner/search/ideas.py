"""Orders made for the costs and the memory at hand: lists by several rules, V-patterns, periods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, product, zip_longest
from random import Random
from typing import Final, Protocol

from fxpipe.ir.action import Kind
from fxpipe.ir.plan import Placement
from fxpipe.planner.search.blocks import promising
from fxpipe.planner.search.listing import Rules, list_schedule
from fxpipe.planner.search.periodic import Periodic
from fxpipe.planner.search.pressing import pressed
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.space import Candidate, Space
from fxpipe.planner.search.ways import Ways
from fxpipe.schedules.v_pattern import Block, v_pattern

_FILLS: Final = (1.0, 0.5, 0.0)
_MORE_FILLS: Final = (0.75, 0.25)
_PACES: Final = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
_PERIODS: Final = (1.0, 1.1, 1.2, 1.3, 1.05, 1.15, 1.4, 1.25, 1.5, 1.35)
_TRIES: Final = 80
_BLOCKS: Final = 24


class Idea(Protocol):
    """A way to make an order, for any number of micro-batches."""

    def __call__(self, problem: Problem) -> Candidate | None:
        """The order for a problem; None if nothing comes of it."""
        ...


@dataclass(frozen=True)
class ListIdea:
    """A list schedule.

    Attributes:
        urgency: problem → urgencies.
        split: whether backwards are split.
        fill: see `Rules`.
        pace: see `Rules`, in multiples of what the busiest rank computes per micro-batch.
    """

    urgency: Callable[[Problem], list[float]]
    split: bool
    fill: float
    pace: float = 0.0

    def __call__(self, problem: Problem) -> Candidate | None:
        """The list; None if memory leaves no way on."""
        pace = self.pace * work(problem)
        rules = Rules(self.urgency(problem), self.split, self.fill, pace=pace)
        orders = list_schedule(problem, rules)
        if orders is None:
            return None
        return Candidate("list", problem, orders, problem.score(orders))


@dataclass(frozen=True)
class PatternIdea:
    """A V-pattern of a block."""

    block: Block

    def __call__(self, problem: Problem) -> Candidate:
        """The pattern."""
        schedule = v_pattern(self.block, problem.micro_batches, "v-pattern")
        orders = problem.scorer.orders(schedule)
        return Candidate("v-pattern", problem, orders, problem.score(orders))


@dataclass(frozen=True)
class PeriodicIdea:
    """One micro-batch's starts, repeated: the same stretch of time over and over, as memory allows.

    Attributes:
        split: whether backwards are split.
        pace: seconds from one micro-batch to the next, in multiples of what the busiest rank computes.
    """

    split: bool
    pace: float

    def __call__(self, problem: Problem) -> Candidate | None:
        """The order; None if the actions do not fit into the period."""
        period = self.pace * work(problem)
        if period <= 0.0:
            return None
        ways = Ways(problem, split=self.split)
        starts = Periodic(problem, ways, period).search(Random(0), _TRIES)
        if starts is None:
            return None
        orders = pressed(problem, ways, starts, period)
        return Candidate("periodic", problem, orders, problem.score(orders))


def ideas(space: Space, problem: Problem) -> Iterator[Idea]:
    """What to try on a problem, lists and others in turn.

    Where memory is limited, some let micro-batches enter at a pace only.
    """
    limited = any(map(math.isfinite, problem.limits))
    lists = _lists(space.split, limited)
    others: list[Iterator[Idea]] = [_patterns(space, problem)]
    if limited:
        others.append(PeriodicIdea(space.split, pace) for pace in _PERIODS)
    yield from islice(lists, 2)
    for turn in zip_longest(*others):
        yield from (idea for idea in turn if idea is not None)
        yield from islice(lists, 1)
    yield from lists


def _lists(may_split: bool, limited: bool) -> Iterator[Idea]:
    splits = (True, False) if may_split else (False,)
    paces = (0.0, *(_PACES if limited else ()))
    rules = chain(
        product(paces, splits, (deep, timely), _FILLS),
        product(paces, splits, (deep, timely), _MORE_FILLS),
    )
    for pace, split, urgency, fill in rules:
        if split or fill == 1.0:
            yield ListIdea(urgency, split, fill, pace)


def _patterns(space: Space, problem: Problem) -> Iterator[Idea]:
    """V-patterns that a rank has room for, where two stages of a rank are a V."""
    if not space.split or problem.placement != Placement.fold(space.ranks) or problem.recomputed:
        return
    costs = problem.cut.costs
    rooms = []
    for rank in problem.ranks:
        kept = sum(costs[stage].saved_bytes for stage in problem.placement.stages_of(rank))
        rooms.append(problem.limits[rank] / max(1, kept))
    room = min(2.0 * space.ranks, *rooms)
    yield from (PatternIdea(found.block) for found in promising(space.ranks, room, _BLOCKS))


def work(problem: Problem) -> float:
    """Seconds that the busiest rank computes per micro-batch."""
    costs = problem.cut.costs
    homes = (problem.placement.stages_of(rank) for rank in problem.ranks)
    return max(sum(costs[s].forward + costs[s].backward for s in stages) for stages in homes)


def deep(problem: Problem) -> list[float]:
    """Urgency: backwards before forwards, of these the last stages' first; micro-batches in turn."""
    count, stages = problem.micro_batches, problem.cut.num_stages
    first = {Kind.RECOMPUTE: 0, Kind.BACKWARD_INPUT: 0, Kind.BACKWARD: 0, Kind.FORWARD: 1}
    return [
        (first.get(kind, 2) * stages + (stages - stage if kind is Kind.FORWARD else 0)) * count + m
        for kind in Kind
        for stage in range(stages)
        for m in range(count)
    ]


def timely(problem: Problem) -> list[float]:
    """Urgency: the earliest start, if micro-batches come as fast as the busiest rank can work."""
    period = work(problem)
    starts = Ways(problem, split=True).heads | Ways(problem, split=False).heads
    return [
        starts.get(problem.number(kind, stage, 0), 0.0) + period * m
        for kind in Kind
        for stage in range(problem.cut.num_stages)
        for m in range(problem.micro_batches)
    ]
