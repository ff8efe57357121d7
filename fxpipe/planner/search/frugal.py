"""One micro-batch at a time: slow, but no order of the same stages on the same ranks keeps less."""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.errors import UnsupportedCountsError
from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.planner.search.named import recomputing
from fxpipe.planner.search.problem import Cut
from fxpipe.planner.search.space import Candidate, Space
from fxpipe.schedules.insert import with_recomputes
from fxpipe.schedules.registry import SCHEDULES

NAME = "one at a time"


def most_frugal(space: Space) -> Candidate | None:
    """What leaves most room under the limits: one micro-batch, all recomputed that saves memory.

    A stage's backward needs its activations, and the inputs of the rank's stages before it, in any order
    and for any number of micro-batches: nothing else is kept here. None if all placements have replicas.
    """
    found: list[Candidate] = []
    for cut in space.cuts:
        every = frozenset(space.saves(range(cut.num_stages), cut))
        for placement in _placements(space, cut):
            problem = space.problem(cut, placement, every, 1)
            orders = problem.scorer.orders(with_recomputes(_serial(cut, placement, 1), every))
            found.append(Candidate(NAME, problem, orders, problem.score(orders)))
    return min(found, key=excess, default=None)


def in_turn(space: Space, least: Candidate) -> Candidate | None:
    """All micro-batches one at a time, as few stages recomputed as the limits allow; None if none do.

    Args:
        space: its number of micro-batches.
        least: the cut and the placement.
    """
    cut, placement = least.problem.cut, least.problem.placement
    problem = space.problem(cut, placement)
    orders = problem.scorer.orders(_serial(cut, placement, space.micro_batches))
    plain = Candidate(NAME, problem, orders, problem.score(orders))
    return plain if plain.fits else recomputing(space, plain)


def excess(candidate: Candidate) -> tuple[float, int]:
    """By how much a rank keeps more than its limit at most, and the rank."""
    score, limits = candidate.score, candidate.problem.limits
    return max((score.peaks[rank] - limits[rank], rank) for rank in candidate.problem.ranks)


def _placements(space: Space, cut: Cut) -> Iterator[Placement]:
    """The ways that are wished for, and those of the schedules with a name, no two alike."""
    found = dict.fromkeys(space.placements_of(cut))
    for generator in SCHEDULES.values():
        try:
            placement = generator(cut.num_stages, space.ranks, 1).placement
        except UnsupportedCountsError:
            continue
        if space.allows_at(cut, placement):
            found[placement] = None
    yield from (placement for placement in found if not placement.replicas)


def _serial(cut: Cut, placement: Placement, micro_batches: int) -> Schedule:
    rows: list[list[Compute]] = [[] for _ in range(placement.num_ranks)]
    stages = range(cut.num_stages)
    for m in range(micro_batches):
        for kind, order in ((Kind.FORWARD, stages), (Kind.BACKWARD, reversed(stages))):
            for stage in order:
                rows[placement.rank_of(stage)].append(Compute(kind, stage, m))
    return Schedule(tuple(map(tuple, rows)), NAME)
