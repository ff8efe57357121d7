"""ZB-H1: zero bubble within the memory of 1F1B, by hand (Qi et al., arXiv 2401.10241)."""

from __future__ import annotations

from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_counts, require_placement
from fxpipe.schedules.interleaved_zb import zero_bubble_row
from fxpipe.schedules.rounds import Rounds
from fxpipe.schedules.starts import place


def zb_h1(
    stages: int, ranks: int, micro_batches: int, placement: Placement | None = None
) -> Schedule:
    """1F1B with split backwards; stage s runs its weight halves s steps late.

    With p ranks of one stage each, m >= p micro-batches and free links:

    - idle time ``(p - 1)(F + I - W)``; if F = I = W, a third of 1F1B's;
    - stage s keeps ``(p - s) A + s A_W``, with A what a forward leaves and A_W what its weight half
      needs: never more than 1F1B's p A.

    With several stages per rank every stage keeps the order it has alone, and a rank merges those of its
    stages by their starts (`fxpipe.schedules.starts.place`).

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
    rounds = Rounds(stages, stages, micro_batches, 1)
    rows = (zero_bubble_row(rounds, stage, stage) for stage in range(stages))
    apart = rounds.schedule(rows, "zb-h1")
    if placement is None and ranks == stages:
        return apart
    return place(apart, placement or Placement.round_robin(stages, ranks))
