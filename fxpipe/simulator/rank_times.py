"""Where the time of every rank went: computing, waiting for others' results, getting these, the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from fxpipe.ir.action import Action, Compute, Fused
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.depend import MAKES, Result, needs
from fxpipe.simulator.metrics import computed

_Made: TypeAlias = dict[tuple[Result, int, int], tuple[float, int]]
"""Result, stage, micro-batch → when it was made, by which rank."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The seconds of a rank, between the first start and the last end of a step.

    Attributes:
        busy: it computed, or updated parameters.
        waiting: what it needed next was not made yet, or there was nothing left to do.
        transfer: what it needed next was made, by another rank, and had not arrived.
        overhead: it needed nothing from others and did not compute.
    """

    busy: float
    waiting: float
    transfer: float
    overhead: float

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.busy + self.waiting + self.transfer + self.overhead

    @property
    def bubble(self) -> float:
        """The share of the step in which it did not compute."""
        return 1.0 - self.busy / self.total if self.total else 0.0


def rank_times(
    timeline: Timeline, graph: StageGraph, schedule: Schedule | None = None
) -> tuple[RankTimes, ...]:
    """Where each rank's time went, of a step that was predicted or measured.

    Transfers need not be in the timeline: what counts is the time between the end of the computation
    that made a value on another rank, and the start of the one that reads it. In a measured step that is
    all it takes to hand a value over, waking up included. Transfers that are over before the rank is
    free hold nobody up, and are not counted.

    Args:
        timeline: of one step.
        graph: the stages and the values between them.
        schedule: knows the fused cells, which hand on at their end; None if there are none.
    """
    made = _made(timeline, schedule)
    begin = min((span.start for span in timeline.spans), default=0.0)
    ranks = range(timeline.num_ranks)
    return tuple(_of_rank(timeline, rank, begin, made, graph) for rank in ranks)


def _made(timeline: Timeline, schedule: Schedule | None) -> _Made:
    ends: dict[Compute, float] = {}
    homes: dict[Compute, int] = {}
    for rank in range(timeline.num_ranks):
        for span in timeline.compute_spans(rank):
            ends[computed(span)], homes[computed(span)] = span.end, rank
    cells = (cell for row in schedule.ranks for cell in row) if schedule is not None else ()
    for cell in cells:
        if isinstance(cell, Fused) and all(action in ends for action in cell.actions):
            last = max(ends[action] for action in cell.actions)
            ends.update(dict.fromkeys(cell.actions, last))
    return {
        (result, action.stage, action.micro_batch): (end, homes[action])
        for action, end in ends.items()
        for result in MAKES[action.kind]
    }


def _of_rank(
    timeline: Timeline, rank: int, begin: float, made: _Made, graph: StageGraph
) -> RankTimes:
    waiting = transfer = overhead = 0.0
    free = begin
    for span in timeline.work_spans(rank):
        gap = max(0.0, span.start - free)
        needed = list(_needed(span.action, made, graph))
        ready = max((end for end, _ in needed), default=free)
        waits = min(gap, max(0.0, ready - free))
        waiting += waits
        if any(home != rank for _, home in needed):
            transfer += gap - waits
        else:
            overhead += gap - waits
        free = max(free, span.end)
    waiting += max(0.0, begin + timeline.makespan - free)
    return RankTimes(timeline.busy(rank), waiting, transfer, overhead)


def _needed(action: Action, made: _Made, graph: StageGraph) -> Iterator[tuple[float, int]]:
    """When, and by which rank, what an action needs was made."""
    if not isinstance(action, Compute):
        return
    stage, m = action.stage, action.micro_batch
    recomputed = (Result.ACTIVATIONS, stage, m) in made
    for result, source in needs(action, graph, recomputed=recomputed):
        if (result, source, m) in made:
            yield made[result, source, m]
