"""Eager 1F1B: 1F1B that runs ahead, so that transfers overlap (Zhuang et al., MLSys 2023)."""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_counts, require_placement
from fxpipe.schedules.starts import place


def eager_1f1b(
    stages: int, ranks: int, micro_batches: int, placement: Placement | None = None
) -> Schedule:
    """Stage s warms up with ``2 (p - 1 - s) + 1`` forwards, then alternates backward and forward.

    With p ranks of one stage each, m micro-batches, equal costs F and B and free links:

    - time ``(m + p - 1)(F + B)``, as 1F1B; a transfer of up to half of F + B each way costs no more
      than at the start and the end, where 1F1B waits for it in every turn;
    - stage s keeps ``min(2 (p - s) - 1, m)`` activations.

    With several stages per rank every stage keeps the order it has alone, and a rank merges those of
    its stages by their starts (`fxpipe.schedules.starts.place`).

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

    def row(stage: int) -> Iterator[Compute]:
        ahead = min(2 * (stages - 1 - stage) + 1, micro_batches)
        yield from (Compute(Kind.FORWARD, stage, m) for m in range(ahead))
        for m in range(micro_batches):
            yield Compute(Kind.BACKWARD, stage, m)
            if m + ahead < micro_batches:
                yield Compute(Kind.FORWARD, stage, m + ahead)

    apart = Schedule(tuple(tuple(row(stage)) for stage in range(stages)), "eager-1f1b")
    if placement is None and ranks == stages:
        return apart
    return place(apart, placement or Placement.round_robin(stages, ranks))
