"""DualPipeV: DualPipe folded in half, one copy of the weights (DeepSeek, arXiv 2412.19437)."""

from __future__ import annotations

from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.chunks import on_stages
from fxpipe.schedules.counts import require_counts
from fxpipe.schedules.dual_pipe_row import DualPipeRow


def dualpipe_v(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """Two stages per rank in a V; a forward of one and a backward of the other share a cell.

    With p ranks of two stages each (r and 2 p - 1 - r), m >= 2 p micro-batches, F = I = W of a whole
    rank, cells that take as long as both their actions, and free links:

    - time ``m (F + I + W) + (p - 1) F``;
    - rank 0 keeps ``p + 1 / 2`` activations of a whole rank.

    What cells are for, transfers that hide behind computation, costs do not show. The order is
    torch's, which wants m >= 2 p; here fewer will do (the missing ones are left out). Other numbers of
    stages are divided into the two chunks of a rank; with one stage per rank the way up is empty.

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    full = max(micro_batches, 2 * ranks)
    rows = (DualPipeRow(r, ranks, full, (r, 2 * ranks - 1 - r)) for r in range(ranks))
    folded = Schedule(tuple(tuple(row.cells()) for row in rows), "dualpipe-v")
    return on_stages(folded, stages, micro_batches, 2 * ranks)
