"""Forwards without backwards: evaluation, and the first half of a call inside somebody's own loop."""

from __future__ import annotations

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_counts


def forward_only(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """Every stage runs its forwards in ascending micro-batches; a rank, one stage after another.

    With p ranks of one stage each, m micro-batches and equal costs F: time ``(m + p - 1) F``,
    bubble ``(p - 1) / (m + p - 1)``; nothing is kept.

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    rows = (
        tuple(
            Compute(Kind.FORWARD, stage, m)
            for stage in range(rank, stages, ranks)
            for m in range(micro_batches)
        )
        for rank in range(ranks)
    )
    return Schedule(tuple(rows), "forward")
