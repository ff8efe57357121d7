"""ZB-H2: ranks that never idle, for twice the memory of 1F1B (Qi et al., arXiv 2401.10241)."""

from __future__ import annotations

from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_counts, require_placement
from fxpipe.schedules.interleaved_zb import zero_bubble_row
from fxpipe.schedules.rounds import Rounds
from fxpipe.schedules.starts import place


def zb_h2(
    stages: int, ranks: int, micro_batches: int, placement: Placement | None = None
) -> Schedule:
    """As ZB-H1, with twice the warm-up: stage s runs ``2 (p - 1 - s) + 1`` forwards, then backwards.

    With p ranks of one stage each, m >= 2 p - 1 micro-batches, free links:

    - every rank is busy from its first action to its last if F = I = W: ``m (F + I + W)``; ranks start
      one after another, so the step takes ``(p - 1) F`` more;
    - stage s keeps ``(2 p - 2 s - 1) A + 2 s A_W``, with A what a forward leaves and A_W what its weight
      half needs.

    With several stages per rank as ZB-H1.

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
    rows = (
        zero_bubble_row(rounds, stage, 2 * stage, stages - 1 - stage) for stage in range(stages)
    )
    apart = rounds.schedule(rows, "zb-h2")
    if placement is None and ranks == stages:
        return apart
    return place(apart, placement or Placement.round_robin(stages, ranks))
