"""V-Min: a third of the memory of 1F1B, two stages per rank in a V (Qi et al., arXiv 2405.15362)."""

from __future__ import annotations

from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.chunks import on_stages
from fxpipe.schedules.counts import require_counts
from fxpipe.schedules.v_pattern import v_pattern


def v_min(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """The shortest block there is: down and up and down and up, without a pause.

    With p ranks of two stages each (r and 2 p - 1 - r), many micro-batches, F = I = W, free links:
    every rank keeps ``(p + 4) // 3`` activations of a whole rank at most; the idle time is about two
    thirds of 1F1B's. If F, I and W differ, it grows with the number of micro-batches.

    Other numbers of stages are divided into the two chunks of a rank; with one stage per rank the way
    up is empty.

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    gap = 2 if ranks % 3 == 0 else 0  # keeps the slots of a rank apart, modulo the period
    block = [
        (
            rank,
            2 * ranks - 1 - rank,
            2 * ranks + gap + rank,
            4 * ranks - 1 + gap - rank,
        )
        for rank in range(ranks)
    ]
    pattern = v_pattern(block, micro_batches, "v-min")
    return on_stages(pattern, stages, micro_batches, 2 * ranks)
