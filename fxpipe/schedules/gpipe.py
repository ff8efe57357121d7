"""GPipe: all forwards, then all backwards (Huang et al., arXiv 1811.06965)."""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_counts, require_placement


def gpipe(
    stages: int, ranks: int, micro_batches: int, placement: Placement | None = None
) -> Schedule:
    """Every stage runs all its forwards, then all its backwards, both in ascending micro-batches.

    With p ranks of one stage each, m micro-batches, equal costs F and B and free links:

    - time ``(m + p - 1)(F + B)``; bubble, as fraction of the total, ``(p - 1) / (m + p - 1)``;
    - every rank keeps ``m`` activations at its peak.

    With v stages per rank a rank runs one stage after another, each
    for all micro-batches (breadth first, Lamy-Poirier, arXiv 2211.05953): for ``m >= p`` the idle
    time falls to ``1 / v``, and a rank keeps ``m`` activations of each of its stages.

    Backwards ascend too (GPipe's own descend), so that gradients are summed in the order in which a
    loop over the micro-batches would sum them.

    It cannot deadlock: forwards by stage, then backwards by descending stage, is one order of all
    actions that respects every dependency, and each rank follows it.

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

    def rank(index: int) -> Iterator[Compute]:
        own = where.stages_of(index)
        for kind, order in ((Kind.FORWARD, own), (Kind.BACKWARD, reversed(own))):
            for stage in order:
                yield from (Compute(kind, stage, m) for m in range(micro_batches))

    return Schedule(tuple(tuple(rank(index)) for index in range(ranks)), "gpipe")
