"""`search_schedule`: the best schedule for given costs and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal

from fxpipe.analysis.progress import progress as progress_bar
from fxpipe.errors import ScheduleError
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.numbers import is_whole
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.planner.search.asked import chunks_of, limits_of, require_effort, require_ranks
from fxpipe.planner.search.cuts import Costs, Graphs, cuts_of
from fxpipe.planner.search.frugal import excess
from fxpipe.planner.search.portfolio import Portfolio
from fxpipe.planner.search.problem import Problem
from fxpipe.planner.search.result import CLOSE, SearchResult, Tried
from fxpipe.planner.search.space import PLACEMENTS, Candidate, Space
from fxpipe.schedules.check import check
from fxpipe.schedules.counts import require_counts
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
    stages_per_rank: int | Sequence[int] = (1, 2, 4),
    placements: Sequence[Literal["loop", "fold"] | Placement] | None = None,
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
        stages_per_rank: which numbers of stages per rank to try; a cut that is given is tried as it is,
            too.
        placements: the ways to put stages on ranks that the result may have: ``"loop"`` (stage s on rank
            ``s % ranks``), ``"fold"`` (down and up again; a zig-zag for more than two stages per rank),
            or your own. Schedules with a name that stand elsewhere are left out. None: a loop, a fold,
            and whatever the schedules with a name have.
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
        ScheduleError: if counts, costs and graph do not belong together, if a limit is negative, if no
            cut can be placed as asked, or if no schedule keeps to the limit; the message says how much
            the most frugal one keeps.
    """
    require_counts(max(1, ranks) if is_whole(ranks) else 1, ranks, micro_batches)
    require_effort(seconds, steps)
    cluster = cluster or Cluster(ranks)
    require_ranks(cluster, placements, ranks)
    cuts = cuts_of(costs, graph, ranks, chunks_of(stages_per_rank))
    space = Space(
        cuts.cuts,
        ranks,
        micro_batches,
        cluster,
        limits_of(cluster.memory if memory_limit is None else memory_limit, ranks, cuts.unit),
        split_backward,
        recompute,
        replicas,
        PLACEMENTS if placements is None else tuple(placements),
        any_named=placements is None,
    ).placeable()
    portfolio = Portfolio(space, seconds, steps, Random(seed))
    with progress_bar("search_schedule", progress) as step:
        portfolio.search(step)
    best = portfolio.not_above_the_named()
    if best is None:
        found = portfolio.found if portfolio.least is None else [portfolio.least]
        raise ScheduleError(_too_much(space, found, cuts.unit))
    return _result(best, portfolio, space, cuts.unit)


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
        bound=_no_higher(portfolio.bound, best.score.makespan),
        peaks=tuple(peak / unit for peak in best.score.peaks),
        limits=tuple(limit / unit for limit in problem.limits),
        recomputed=problem.recomputed,
        tried=tuple(_tried(one, unit) for one in portfolio.found),
        unit=unit,
    )


def _no_higher(bound: float, makespan: float) -> float:
    """The bound, but where only rounding puts it above what was found."""
    return makespan if makespan < bound <= makespan * (1.0 + CLOSE) else bound


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
