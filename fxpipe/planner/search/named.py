"""The schedules with a name as candidates, also on other placements, also with recomputation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from fxpipe.errors import ScheduleError, UnsupportedCountsError
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.planner.search.problem import Cut
from fxpipe.planner.search.space import Candidate, Space
from fxpipe.schedules.insert import with_recomputes, without_cells
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.schedules.starts import place
from fxpipe.schedules.zb_auto import zb_auto

_PLACEABLE: Final = ("1f1b", "eager-1f1b", "zb-h1", "zb-h2", "gpipe")
"""Those that say what every stage does, wherever it is."""


def named(space: Space, cut: Cut) -> Iterator[Candidate]:
    """Every schedule with a name that a cut can have, fused cells opened; then the greedy one.

    That one has no name that a schedule could be asked for by: it is made for costs and limits.
    """
    for name, generator in SCHEDULES.items():
        try:
            schedule = generator(cut.num_stages, space.ranks, space.micro_batches)
        except UnsupportedCountsError:
            continue
        allowed = space.allows(schedule) and space.allows_at(cut, schedule.placement)
        if schedule.has_backward and allowed:
            yield _candidate(space, cut, without_cells(schedule), name)
    loop = Placement.round_robin(cut.num_stages, space.ranks)
    if cut.num_stages == space.ranks and space.split and space.allows_at(cut, loop):
        hop, limits = space.cluster.latency, space.limits
        try:
            schedule = zb_auto(cut.costs, space.micro_batches, hop=hop, limits=limits)
        except ScheduleError:  # too little memory for it
            return
        yield replace(_candidate(space, cut, schedule, "zb-auto"), named=False)


def placed(space: Space, cut: Cut, placement: Placement) -> Iterator[Candidate]:
    """Schedules made for one stage per rank, their stages on the ranks of a placement."""
    if placement == Placement.round_robin(cut.num_stages, space.ranks):
        return  # as their generators do
    for name in _PLACEABLE:
        free = SCHEDULES[name](cut.num_stages, cut.num_stages, space.micro_batches)
        if space.allows(free):
            found = _candidate(space, cut, place(free, placement), f"{name}, placed")
            yield replace(found, named=False)


def recomputing(space: Space, candidate: Candidate) -> Candidate | None:
    """A candidate that keeps too much, with as few stages recomputed as make it fit; None if none do.

    On a rank that keeps too much, the stage goes first whose recomputation saves most.
    """
    problem, schedule = candidate.problem, candidate.schedule
    every = frozenset(space.saves(range(problem.cut.num_stages), problem.cut))
    most = with_recomputes(schedule, every)
    if not candidate.fits and not _candidate(space, problem.cut, most, "", every).fits:
        return None
    taken: set[int] = set()
    while not candidate.fits:
        more = [
            _largest(space, problem.cut, problem.placement.stages_of(rank), taken)
            for rank in problem.ranks
            if candidate.score.peaks[rank] > problem.limits[rank]
        ]
        if min(more) < 0 or math.isinf(candidate.score.makespan):
            return None
        taken.update(more)
        again = with_recomputes(schedule, taken)
        made = _candidate(space, problem.cut, again, candidate.name, frozenset(taken))
        candidate = replace(made, named=False)
    return candidate


def _candidate(
    space: Space, cut: Cut, schedule: Schedule, name: str, taken: frozenset[int] = frozenset()
) -> Candidate:
    problem = space.problem(cut, schedule.placement, taken)
    orders = problem.scorer.orders(schedule)
    return Candidate(name, problem, orders, problem.score(orders), named=True)


def _largest(space: Space, cut: Cut, stages: Sequence[int], taken: set[int]) -> int:
    """The stage of a rank whose recomputation saves most; -1 if there is none left."""
    free = [stage for stage in space.saves(stages, cut) if stage not in taken]
    costs = cut.costs
    return max(free, key=lambda s: costs[s].saved_bytes - costs[s].input_bytes, default=-1)
