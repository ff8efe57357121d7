"""Numbers out of timelines: bubbles by either convention, busy and idle time, the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.cost import StageCost
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.schedules.depend import MAKES, Result, needs
from fxpipe.simulator.blockers import Blockers


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


def device_span(timeline: Timeline) -> float:
    """Seconds of the longest rank, from its own first computation's start to its last one's end.

    An update counts as one.
    """
    rows = (timeline.work_spans(rank) for rank in range(timeline.num_ranks))
    return max((row[-1].end - row[0].start for row in rows if row), default=0.0)


def device_span_bubble(timeline: Timeline) -> float:
    """Idle time as fraction of the total where every rank is given the device span, not the makespan.

    This is the convention of the zero-bubble papers (arXiv 2401.10241): what a step costs among many if
    ranks need not wait for one another between them.
    """
    total = timeline.num_ranks * device_span(timeline)
    busy = sum(timeline.busy(rank) for rank in range(timeline.num_ranks))
    return 1.0 - busy / total if total else 0.0


def bubble_ratio(timeline: Timeline) -> float:
    """Idle time relative to ideal: idle / busy, over all ranks.

    This is the convention of Megatron-LM (arXiv 2104.04473), ``(p - 1) / m`` for 1F1B with p ranks
    and m micro-batches, where the other one is ``(p - 1) / (m + p - 1)``.
    """
    use = rank_use(timeline)
    busy = sum(rank.busy for rank in use)
    return sum(rank.idle for rank in use) / busy if busy else 0.0


def critical_path(timeline: Timeline, graph: StageGraph) -> tuple[Span, ...]:
    """The computations and updates that decided the makespan, first to last.

    From the last to end, back to what each of them started after: what its rank did before, if that
    ended when it started, else what made the value that its rank waited for. Where a link was busy, that
    is whoever held up the value before it. Transfers are what lies between the end of one and the start
    of the next on another rank. O(spans × needs).

    Args:
        timeline: predicted or measured.
        graph: the stages and the values between them.
    """
    blockers = Blockers(timeline, graph)
    path: list[Span] = []
    span = blockers.last()
    while span is not None:
        path.append(span)
        span = blockers.of(span)
    return tuple(reversed(path))


def computed(span: Span) -> Compute:
    """The action of a span out of `Timeline.compute_spans`."""
    assert isinstance(span.action, Compute)
    return span.action


def longest_chain(
    graph: StageGraph, costs: Sequence[StageCost], *, backward: bool = True, split: bool = False
) -> float:
    """Seconds of the longest chain of dependent computations of one micro-batch.

    With infinitely many ranks and free links no step is shorter: it bounds every makespan from
    below, as does the busiest rank.

    Args:
        graph: the stages and the values between them.
        costs: per stage, for one micro-batch.
        backward: whether there are backwards.
        split: whether these may be split, so that nobody waits for a weight half.
    """
    full = Kind.BACKWARD_INPUT if split else Kind.BACKWARD
    kinds = [Kind.FORWARD, *([full] if backward else [])]
    ends: dict[tuple[Result, int], float] = {}
    last = 0.0
    for kind in kinds:
        stages = range(graph.num_stages)
        for stage in stages if kind is Kind.FORWARD else reversed(stages):
            start = max((ends[key] for key in needs(Compute(kind, stage, 0), graph)), default=0.0)
            end = start + costs[stage].seconds(kind)
            ends.update({(result, stage): end for result in MAKES[kind]})
            last = max(last, end + (costs[stage].weight if kind is Kind.BACKWARD_INPUT else 0.0))
    return last
