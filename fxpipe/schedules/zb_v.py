"""ZB-V: zero bubble within the memory of 1F1B, two stages per rank in a V (arXiv 2401.10241)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.chunks import on_stages
from fxpipe.schedules.counts import require_counts


def zb_v(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """Down the ranks and up again; weight halves right after their input halves, but at the end.

    With p ranks of two stages each (r and 2 p - 1 - r), m >= 2 p - 1 micro-batches, F = I = W of a
    whole rank, free links:

    - every rank is busy from its first action to its last: ``m (F + I + W)``; ranks start one after
      another, so the step takes ``(p - 1) F / 2`` more;
    - every rank keeps p activations of a whole rank, where 1F1B's ranks keep p, p - 1, ….

    The order is torch's. Other numbers of stages are divided into the two chunks of a rank; with one
    stage per rank the way up is empty.

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    full = max(micro_batches, 2 * ranks - 1)
    rows = tuple(tuple(_row(rank, ranks, full)) for rank in range(ranks))
    return on_stages(Schedule(rows, "zb-v"), stages, micro_batches, 2 * ranks)


def _row(rank: int, ranks: int, micro_batches: int) -> Iterator[Compute]:
    """A rank's chunks, 0 on the way down and 1 on the way up, in turns of F, I, W."""
    chunks = (rank, 2 * ranks - 1 - rank)
    numbers = {(kind, chunk): count() for kind in "FIW" for chunk in chunks}

    def go(*turn: tuple[str, int]) -> Iterator[Compute]:
        for kind, chunk in turn:
            stage = chunks[chunk]
            yield Compute(Kind(kind), stage, next(numbers[kind, stage]))

    down, up = (("F", 0), ("I", 0), ("W", 0)), (("F", 1), ("I", 1), ("W", 1))
    yield from go(*[("F", 0)] * (2 * (ranks - rank) - 1))
    yield from go(*[("F", 1), ("F", 0)] * rank)
    yield from go(*up * (ranks - rank))
    yield from go(*(down + up) * (micro_batches - (2 * ranks - rank - 1)))
    yield from go(*(down[1:] + up) * (ranks - rank - 1))
    yield from go(*[("I", 0), ("I", 1)] * rank)
    yield from go(*[("I", 0), ("W", 0)] * (ranks - rank))
    yield from go(*[("W", 1)] * rank, *[("W", 0)] * rank)
