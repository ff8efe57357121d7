"""Looped BFS: GPipe for several stages per rank, breadth first (Lamy-Poirier, arXiv 2211.05953)."""

from __future__ import annotations

from dataclasses import replace

from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.gpipe import gpipe


def looped_bfs(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """A rank runs one stage after another, each for all micro-batches; then back in reverse.

    With p ranks of v stages each, m >= p micro-batches, forward F and backward B of a whole rank and
    free links: time ``m (F + B) + (p - 1)(F + B) / v``; every rank keeps m activations. Each stage's
    parameters are touched in one stretch per direction.

    It is what `gpipe` does; torch's LoopedBFS takes the backwards of a stage in descending
    micro-batches, which would turn the order of sums around.

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    return replace(gpipe(stages, ranks, micro_batches), name="looped-bfs")
