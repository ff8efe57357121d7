"""Chimera: two replicas in opposite directions, on each other's free slots (Li, Hoefler, 2107.06925)."""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.chunks import on_stages
from fxpipe.schedules.counts import require_counts, require_even


def chimera(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """Units of p micro-batches, half of them down the ranks, half up, one unit right after the other.

        4 ranks, 4 micro-batches: even ones go down, odd ones up, where stage s is on rank 3 - s

        0F0  0F2  .    3F1  3B1  3F3  3B3  0B0  .    0B2
        .    1F0  2F1  1F2  2F3  2B1  1B0  2B3  1B2  .
        .    1F1  2F0  1F3  2F2  2B0  1B1  2B2  1B3  .
        0F1  0F3  .    3F0  3B0  3F2  3B2  0B1  .    0B3

    With p ranks (an even number) of one stage and its mirror image each, m micro-batches (p divides m)
    and free links:

    - bubble, as fraction of the total, ``(p - 2) / (2 m + p - 2)`` if B = F, and
      ``(p - 2) / (3 m / 2 + p - 2)`` if B = 2 F and m = p;
    - rank r keeps ``p / 2 + 1 + min(r, p - 1 - r)`` activations, and two stages' weights.

    Any m will do (the missing ones are left out). Several stages per rank follow each other at once, as
    if they were one.

    Gradients of the two copies are added at the end: results agree with a loop over the micro-batches up
    to rounding.

    Raises:
        UnsupportedCountsError: for an odd number of ranks.
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    require_even("chimera", ranks, "dualpipe-v")
    units = -(-micro_batches // ranks)
    rows: list[list[tuple[int, Compute]]] = [[] for _ in range(ranks)]
    for m in range(units * ranks):
        for slot, action in _way(m, ranks):
            rank = ranks - 1 - action.stage if m % 2 else action.stage
            rows[rank].append((slot, action))
    for row in rows:
        row.sort(key=lambda entry: entry[0])
    ordered = tuple(tuple(action for _, action in row) for row in rows)
    return on_stages(Schedule(ordered, "chimera", replicas=2), stages, micro_batches, ranks)


def _way(micro_batch: int, ranks: int) -> Iterator[tuple[int, Compute]]:
    """A micro-batch's actions, each in its slot.

    Within a unit a direction starts a micro-batch every other slot; stages s and ``ranks - 1 - s`` of a
    rank then have slots of different parity. A unit fills ``2 ranks`` slots of every rank.
    """
    unit, at = divmod(micro_batch, ranks)
    start = 2 * ranks * unit + 2 * (at // 2)
    for stage in range(ranks):
        yield start + stage, Compute(Kind.FORWARD, stage, micro_batch)
        yield start + 2 * ranks - 1 - stage, Compute(Kind.BACKWARD, stage, micro_batch)
