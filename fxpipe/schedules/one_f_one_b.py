"""1F1B: one forward, one backward (PipeDream-Flush, Narayanan et al., arXiv 2006.09503; DAPPLE)."""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_counts, require_placement


def one_f_one_b(
    stages: int, ranks: int, micro_batches: int, placement: Placement | None = None
) -> Schedule:
    """Stage s warms up with ``stages - 1 - s`` forwards, then alternates one forward, one backward.

    With p ranks of one stage each, m micro-batches, equal costs F and B and free links:

    - time ``(m + p - 1)(F + B)``; bubble, as fraction of the total, ``(p - 1) / (m + p - 1)``;
    - stage s keeps ``min(p - s, m)`` activations at its peak.

    With several stages per rank every stage keeps its own order, and
    a rank merges those of its stages by the time at which they would start if each stage had a rank
    of its own. Along every dependency that time increases: it cannot deadlock.

    Args:
        stages: number of stages.
        ranks: number of ranks.
        micro_batches: number of micro-batches.
        placement: stage → rank; stage s on rank ``s % ranks`` if None.

    Raises:
        ScheduleError: for counts that no schedule can have, or a placement of others.
    """
    require_counts(stages, ranks, micro_batches)
    if placement is not None:
        require_placement(placement, stages, ranks)
    where = placement or Placement.round_robin(stages, ranks)
    rows = []
    for rank in range(ranks):
        own = where.stages_of(rank)
        timed = [entry for stage in own for entry in _stage(stage, stages, micro_batches)]
        timed.sort(key=lambda entry: (entry[0], -entry[1].stage))
        rows.append(tuple(action for _, action in timed))
    return Schedule(tuple(rows), "1f1b")


def _stage(stage: int, stages: int, micro_batches: int) -> Iterator[tuple[int, Compute]]:
    """A stage's actions in order, each with its start if all take one unit and no rank is shared.

    Backward m of the last stage starts one unit after its forward, and each earlier stage one unit
    later. Forwards beyond the warm-up wait for the backward that makes room for them:

        0:  F0  F1  F2  .   .   B0  F3  B1  .   B2  .   B3
        1:  .   F0  F1  .   B0  F2  B1  F3  B2  .   B3  .
        2:  .   .   F0  B0  F1  B1  F2  B2  F3  B3  .   .
    """
    for m in range(micro_batches):
        start = stage + m if m < stages - stage else 2 * m + stage
        yield start, Compute(Kind.FORWARD, stage, m)
    for m in range(micro_batches):
        yield 2 * m + 2 * stages - 1 - stage, Compute(Kind.BACKWARD, stage, m)
