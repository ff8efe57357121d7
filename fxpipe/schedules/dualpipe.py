"""DualPipe: two replicas of the weights, fed from both ends (DeepSeek, arXiv 2412.19437)."""

from __future__ import annotations

from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.chunks import on_stages
from fxpipe.schedules.counts import require_counts, require_even
from fxpipe.schedules.dual_pipe_row import DualPipeRow


def dualpipe(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """Even micro-batches go down the ranks, odd ones up, through a copy of the stages of their own.

    With p ranks (an even number) of one stage and its mirror image each, m >= 2 p micro-batches (an even
    number), F = I = W, cells that take as long as both their actions, and free links:

    - time ``m (F + I + W) + (p - 2) F``;
    - every rank keeps ``p + 1`` activations, and two stages' weights.

    DualPipe itself wants m even and at least 2 p; here any m will do (the missing ones are left out).
    Several stages per rank follow each other at once, as if they were one.

    Gradients of the two copies are added at the end: results agree with a loop over the micro-batches up
    to rounding.

    Raises:
        UnsupportedCountsError: for an odd number of ranks.
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    require_even("dualpipe", ranks, "dualpipe-v")
    half = ranks // 2
    each = max(-(-micro_batches // 2), ranks)
    rows = []
    for rank in range(ranks):
        depth, mirror = min(rank, ranks - 1 - rank), max(rank, ranks - 1 - rank)
        near = 0 if rank < half else 1
        row = DualPipeRow(depth, half, each, (depth, mirror), 2, (near, 1 - near))
        rows.append(tuple(row.cells()))
    both = Schedule(tuple(rows), "dualpipe", replicas=2)
    return on_stages(both, stages, micro_batches, ranks)
