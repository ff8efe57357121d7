"""`search_schedule`: the best schedule for given costs and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

from fxpipe.analysis.progress import progress as progress_bar
from fxpipe.errors import ScheduleError
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.planner.search.cuts import Costs, Graphs, cuts_of
from fxpipe.planner.search.frugal import excess
from fxpipe.planner.search.portfolio import Portfolio
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.result import SearchResult, Tried
from fxpipe.planner.search.space import PLACEMENTS, Candidate, Space
from fxpipe.schedules.check import check
from fxpipe.schedules.counts import require_counts, require_placement
from fxpipe.schedules.links import check_programs
from fxpipe.schedules.lower import lower
from fxpipe.schedules.memory import check_memory


def search_schedule(
    costs: Costs,
    memory_limit: float | Sequence[float] | None = None,
    *,
    ranks: int,
    micro_batches: int,
    graph: Graphs = None,
    cluster: Cluster | None = None,
    stages_per_rank: Sequence[int] = (1, 2, 4),
    placements: Sequence[Literal["loop", "fold"] | Placement] = ("loop", "fold"),
    split_backward: bool = True,
    recompute: bool = True,
    replicas: bool = False,
    seconds: float = 8.0,
    steps: int = 4000,
    seed: int = 0,
    progress: bool = True,
) -> SearchResult:
    """The fastest schedule that the simulator knows of, for these costs and this memory.

    A portfolio: every schedule with a name, on every cut and placement; where it keeps too much, with
    stages recomputed; V-patterns of all slopes (Qi et al., arXiv 2405.15362); orders that repeat, where
    memory is limited; list scheduling by several rules; the best of these with their weight halves
    where these costs leave gaps; then local search from the best. The
    result is at least as good as the best schedule with a name that was tried and keeps to the limit.
    The search ends when it meets the lower bound, and at once where no order keeps to the limit.

    Args:
        costs: per stage of one cut, for one micro-batch: finer cuts are estimated by dividing every
            stage evenly, coarser ones merge neighbours. Or a function: number of stages → costs of the
            stages of the cut into so many.
        memory_limit: bytes that each rank (or that one rank each) may keep from forward to backward:
            `StageCost.saved_bytes` of all that is under way. None: no limit.
        ranks: number of ranks.
        micro_batches: number of micro-batches.
        graph: the stages and the values between them, of the one cut or as a function of the number of
            stages. None: each stage reads the one before it.
        cluster: links (and speeds, if ranks slow each other down); free ones if None.
        stages_per_rank: which numbers of stages per rank to try.
        placements: which ways to put stages on ranks: ``"loop"`` (stage s on rank ``s % ranks``),
            ``"fold"`` (down and up again; a zig-zag for more than two stages per rank), or your own.
        split_backward: whether backwards may be split into input and weight halves.
        recompute: whether activations may be made anew, where that saves memory
            (``StageCost.input_bytes`` below ``saved_bytes``).
        replicas: whether schedules may hold two copies of every stage: more weights, and sums in
            another order. The second copy's parameters and gradients count against the limit.
        seconds: when to stop; what has been begun is finished. Every schedule with a name is tried in
            any case, unless a cut's stages × micro-batches are more than 2048; then they may take three
            times as long at most, if all that fits so far is poor.
        steps: moves of the local search from each of its starts. If time does not run out, the same
            arguments give the same result.
        seed: of the local search.
        progress: whether to show a bar, on a terminal.

    Raises:
        ScheduleError: if counts, costs and graph do not belong together, if a limit is negative, or if
            no schedule keeps to the limit; the message says how much the most frugal one keeps.
    """
    require_counts(max(1, ranks), ranks, micro_batches)
    cluster = cluster or Cluster(ranks)
    _require_ranks(cluster, placements, ranks)
    cuts = cuts_of(costs, graph, ranks, stages_per_rank)
    space = Space(
        cuts.cuts,
        ranks,
        micro_batches,
        cluster,
        _limits(cluster.memory if memory_limit is None else memory_limit, ranks, cuts.unit),
        split_backward,
        recompute,
        replicas,
        tuple(placements),
    )
    portfolio = Portfolio(space, seconds, steps, Random(seed))
    with progress_bar("search_schedule", progress) as step:
        portfolio.search(step)
    best = portfolio.best
    if best is None:
        found = portfolio.found if portfolio.least is None else [portfolio.least]
        raise ScheduleError(_too_much(space, found, cuts.unit))
    return _result(best, portfolio, space, cuts.unit)


def _require_ranks(cluster: Cluster, placements: Sequence[str | Placement], ranks: int) -> None:
    """Refuse a cluster or placements that are not of these ranks."""
    if cluster.ranks < ranks:
        raise ScheduleError(f"a cluster of {cluster.ranks} ranks for {ranks}")
    for wish in placements:
        if isinstance(wish, Placement):
            require_placement(wish, len(wish.ranks), ranks)
        elif wish not in PLACEMENTS:
            raise ScheduleError(
                f"there is no placement {wish!r}; known are {', '.join(map(repr, PLACEMENTS))} (a V, or "
                "a zig-zag for more than two stages per rank), or a Placement of your own"
            )


def _limits(given: float | Sequence[float] | None, ranks: int, unit: int) -> tuple[float, ...]:
    """The limit of every rank in the unit in which bytes are counted."""
    if given is None:
        return (math.inf,) * ranks
    limits = list(given) if isinstance(given, Sequence) else [given] * ranks
    if len(limits) != ranks:
        raise ScheduleError(f"memory limits of {len(limits)} ranks for {ranks}")
    if not min(limits) >= 0 or any(map(math.isnan, limits)):
        raise ScheduleError(f"a memory limit cannot be negative, got {given}")
    return tuple(float(limit * unit) for limit in limits)


def _too_much(space: Space, found: Sequence[Candidate], unit: int) -> str:
    """Why there is no schedule."""
    least = min(found, key=excess)
    _, rank = excess(least)
    cut, limit = least.problem.cut, least.problem.limits[rank]
    saving = space.saves(range(cut.num_stages), cut)
    advice = "allow more"
    if space.recompute and len(saving) < cut.num_stages:
        advice += (
            ", or give costs with an `input_bytes` below `saved_bytes`, so that recomputation saves "
            "memory"
        )
    return (
        f"no schedule keeps to the limit: the most frugal one, {least.name!r} with {cut.num_stages} "
        f"stages{' recomputed' if saving else ''}, keeps {least.score.peaks[rank] / unit:g} bytes on "
        f"rank {rank}, which may keep {limit / unit:g}; {advice}"
    )


def _result(best: Candidate, portfolio: Portfolio, space: Space, unit: int) -> SearchResult:
    problem = best.problem
    schedule = best.schedule
    _require_legal(schedule, problem)
    return SearchResult(
        schedule=schedule,
        costs=problem.cut.costs,
        graph=problem.cut.graph,
        cluster=space.cluster,
        makespan=best.score.makespan,
        bound=portfolio.bound,
        peaks=tuple(peak / unit for peak in best.score.peaks),
        limits=tuple(limit / unit for limit in problem.limits),
        recomputed=problem.recomputed,
        tried=tuple(_tried(one, unit) for one in portfolio.found),
        unit=unit,
    )


def _require_legal(schedule: Schedule, problem: Problem) -> None:
    """Hold the schedule against the checks that know nothing of the search."""
    check(schedule, problem.cut.graph)
    programs = lower(schedule, problem.cut.graph)
    check_programs(programs)
    bounded = [
        (one, limit)
        for one, limit in zip(programs, problem.limits, strict=True)
        if math.isfinite(limit)
    ]
    check_memory(
        [one for one, _ in bounded], problem.cut.costs, [int(limit) for _, limit in bounded]
    )


def _tried(candidate: Candidate, unit: int) -> Tried:
    problem = candidate.problem
    stages, ranks = problem.cut.num_stages, len(problem.ranks)
    placement = "own"
    if problem.placement == Placement.round_robin(stages, ranks):
        placement = "loop"
    elif stages % ranks == 0 and problem.placement == Placement.fold(ranks, stages // ranks):
        placement = "fold"
    return Tried(
        name=candidate.name,
        stages=stages,
        placement=placement,
        recomputed=len(problem.recomputed),
        makespan=candidate.score.makespan,
        peak=max(candidate.score.peaks) / unit,
        fits=candidate.fits,
        named=candidate.named,
    )
