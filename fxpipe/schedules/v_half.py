"""V-Half: half the memory of 1F1B, two stages per rank in a V (Qi et al., arXiv 2405.15362)."""

from __future__ import annotations

from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.chunks import on_stages
from fxpipe.schedules.counts import require_counts
from fxpipe.schedules.v_pattern import v_pattern


def v_half(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """A block that is as long on every rank: the way up is half as steep as the way down.

    With p ranks of two stages each (r and 2 p - 1 - r), many micro-batches, F = I = W, free links:
    every rank keeps ``(p + 2) // 2`` activations of a whole rank at most; the idle time is about half of
    1F1B's.

    Other numbers of stages are divided into the two chunks of a rank; with one stage per rank the way
    up is empty.

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    gap = 3 * (1 - ranks % 2)  # keeps the slots of a rank apart, modulo the period
    block = [
        (
            2 * rank,
            3 * ranks - 2 - rank,
            3 * ranks - 1 + gap + 2 * rank,
            6 * ranks - 2 + gap - rank,
        )
        for rank in range(ranks)
    ]
    pattern = v_pattern(block, micro_batches, "v-half")
    return on_stages(pattern, stages, micro_batches, 2 * ranks)
