"""Backwards whose forwards ran before: the second half of a call inside somebody's own loop."""

from __future__ import annotations

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_counts


def backward_only(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """Every stage runs its backwards in ascending micro-batches; a rank, its last stage first.

    It takes the outputs of all stages and micro-batches as made: ``check`` it with
    ``given=(Result.OUTPUT,)``. With p ranks of one stage each, m micro-batches and equal costs B:
    time ``(m + p - 1) B``; the ``m`` activations of every stage are kept at the start.

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    rows = (
        tuple(
            Compute(Kind.BACKWARD, stage, m)
            for stage in reversed(range(rank, stages, ranks))
            for m in range(micro_batches)
        )
        for rank in range(ranks)
    )
    return Schedule(tuple(rows), "backward")
