"""Numbers out of timelines: bubbles by either convention, busy and idle time, the critical path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.cost import StageCost
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.schedules.depend import MAKES, Result, needs


@dataclass(frozen=True, slots=True)
class RankUse:
    """A rank's seconds: computing, and not, between the first start and the last end of the step."""

    busy: float
    idle: float


def rank_use(timeline: Timeline) -> tuple[RankUse, ...]:
    """Busy and idle seconds of every rank."""
    makespan = timeline.makespan
    busy = [timeline.busy(rank) for rank in range(timeline.num_ranks)]
    return tuple(RankUse(seconds, makespan - seconds) for seconds in busy)


def bubble_fraction(timeline: Timeline) -> float:
    """Idle time as fraction of the total: idle / (ranks × makespan)."""
    return timeline.bubble


def bubble_ratio(timeline: Timeline) -> float:
    """Idle time relative to ideal: idle / busy, over all ranks.

    This is the convention of Megatron-LM (arXiv 2104.04473), ``(p - 1) / m`` for 1F1B with p ranks
    and m micro-batches, where the other one is ``(p - 1) / (m + p - 1)``.
    """
    use = rank_use(timeline)
    busy = sum(rank.busy for rank in use)
    return sum(rank.idle for rank in use) / busy if busy else 0.0


def critical_path(timeline: Timeline, graph: StageGraph) -> tuple[Span, ...]:
    """The computations that decided the makespan, first to last.

    From the last computation to end, back to whatever it waited for longest: a result that it needs,
    or its rank's computation before it. O(spans × needs).
    """
    computes = [span for span in timeline.spans if isinstance(span.action, Compute)]
    if not computes:
        return ()
    makers: dict[tuple[Result, int, int], Span] = {}
    before: dict[Span, Span] = {}
    last_of: dict[int, Span] = {}
    for span in computes:
        action = _compute(span)
        makers.update({(r, action.stage, action.micro_batch): span for r in MAKES[action.kind]})
        if span.rank in last_of:
            before[span] = last_of[span.rank]
        last_of[span.rank] = span
    path = [max(computes, key=lambda span: span.end)]
    while (earlier := _blocker(path[-1], makers, before, graph)) is not None:
        path.append(earlier)
    return tuple(reversed(path))


def _blocker(
    span: Span,
    makers: Mapping[tuple[Result, int, int], Span],
    before: Mapping[Span, Span],
    graph: StageGraph,
) -> Span | None:
    action = _compute(span)
    keys = [(result, stage, action.micro_batch) for result, stage in needs(action, graph)]
    found = [makers[key] for key in keys if key in makers]
    if span in before:
        found.append(before[span])
    return max(found, key=lambda candidate: candidate.end, default=None)


def _compute(span: Span) -> Compute:
    assert isinstance(span.action, Compute)
    return span.action


def longest_chain(graph: StageGraph, costs: Sequence[StageCost], *, backward: bool = True) -> float:
    """Seconds of the longest chain of dependent computations of one micro-batch.

    With infinitely many ranks and free links no step is shorter: it bounds every makespan from
    below, as does the busiest rank.
    """
    kinds = [Kind.FORWARD, *([Kind.BACKWARD] if backward else [])]
    ends: dict[tuple[Result, int], float] = {}
    for kind in kinds:
        stages = range(graph.num_stages)
        for stage in stages if kind is Kind.FORWARD else reversed(stages):
            start = max((ends[key] for key in needs(Compute(kind, stage, 0), graph)), default=0.0)
            cost = costs[stage].forward if kind is Kind.FORWARD else costs[stage].backward
            ends.update({(result, stage): start + cost for result in MAKES[kind]})
    return max(ends.values(), default=0.0)
