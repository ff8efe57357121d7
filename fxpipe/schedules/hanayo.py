"""Hanayo: waves over the ranks, without a second copy of the weights (Liu et al., SC 2023)."""

from __future__ import annotations

import heapq
from typing import TypeAlias

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.chunks import on_stages
from fxpipe.schedules.counts import require_counts


def hanayo(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """Micro-batches go to and fro: 2 W stages per rank in a zig-zag are W waves.

    A rank takes backwards before forwards, of backwards those of earlier micro-batches and of forwards
    those of later stages first, of what is there and has room: it keeps p activations of a whole rank
    at most, as 1F1B's first rank does, and leaves room for its later stages. One wave is Chimera with
    its two directions one after the other instead of side by side; more waves, shorter bubbles, more
    transfers.

    With p ranks, m = p micro-batches, B = 2 F of a whole rank and free links:

    - idle time ``2 (p - 1) F / W`` for one wave, and at most a tenth more for several: bubble, as
      fraction of the total, ``(2 p - 2) / (3 p W + 2 p - 2)``. No order of these stages idles less than
      three quarters of that.
    - The paper has ``(2 p - 2) / (3 p W + p - 1)``: the same idle time, over p - 1 less than work and
      idle time make together.

    The order is that of a run in which a stage's backward takes twice its forward. Other numbers of
    stages are divided into the 2 W chunks of a rank (W the most that there are stages for, at least 1).

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    legs = 2 * max(1, stages // (2 * ranks))
    waves = _Waves(Placement.fold(ranks, legs), micro_batches)
    return on_stages(waves.schedule(), stages, micro_batches, legs * ranks)


class _Waves:
    """The ranks on a clock, each taking the best of what it can start."""

    def __init__(self, placement: Placement, micro_batches: int) -> None:
        ranks = range(placement.num_ranks)
        self._placement = placement
        self._micro_batches = micro_batches
        self._chunks = len(placement.ranks)
        self._legs = self._chunks // len(ranks)
        self._backwards: list[list[_Offer]] = [[] for _ in ranks]
        self._forwards: list[list[_Offer]] = [[] for _ in ranks]
        self._kept = [0 for _ in ranks]
        self._rows: list[list[Compute]] = [[] for _ in ranks]

    def schedule(self) -> Schedule:
        """What every rank took, in order."""
        for m in range(self._micro_batches):
            self._offer(Compute(Kind.FORWARD, 0, m))
        running: list[tuple[int, int]] = []
        idle = list(range(len(self._rows)))
        now = 0
        while idle:
            for rank in idle:
                action = self._take(rank)
                if action is not None:
                    self._rows[rank].append(action)
                    heapq.heappush(running, (now + _duration(action), rank))
            if not running:
                break
            now, idle = running[0][0], []
            while running and running[0][0] == now:
                rank = heapq.heappop(running)[1]
                self._done(rank)
            busy = {rank for _, rank in running}
            idle = [rank for rank in range(len(self._rows)) if rank not in busy]
        return Schedule(tuple(map(tuple, self._rows)), "hanayo")

    def _take(self, rank: int) -> Compute | None:
        """The best of what a rank can start now."""
        if self._backwards[rank]:
            return heapq.heappop(self._backwards[rank])[-1]
        if self._forwards[rank]:
            stage = self._forwards[rank][0][-1].stage
            later = self._legs - 1 - stage // len(self._rows)
            if self._kept[rank] < self._chunks - later:
                self._kept[rank] += 1
                return heapq.heappop(self._forwards[rank])[-1]
        return None

    def _offer(self, action: Compute) -> None:
        rank = self._placement.rank_of(action.stage)
        queues = self._forwards if action.kind is Kind.FORWARD else self._backwards
        heapq.heappush(queues[rank], (*_haste(action), action))

    def _done(self, rank: int) -> None:
        """Offer what can start now that a rank's last action is done."""
        done = self._rows[rank][-1]
        stage, m = done.stage, done.micro_batch
        if done.kind is Kind.BACKWARD:
            self._kept[rank] -= 1
            if stage:
                self._offer(Compute(Kind.BACKWARD, stage - 1, m))
        elif stage == self._chunks - 1:
            self._offer(Compute(Kind.BACKWARD, stage, m))
        else:
            self._offer(Compute(Kind.FORWARD, stage + 1, m))


_Offer: TypeAlias = tuple[int, int, Compute]
"""What goes first, least first, and the action."""


def _haste(action: Compute) -> tuple[int, int]:
    """Backwards by micro-batch: these leave the pipeline first. Forwards by stage, the last first."""
    stage, m = -action.stage, action.micro_batch
    return (stage, m) if action.kind is Kind.FORWARD else (m, stage)


def _duration(action: Compute) -> int:
    return 1 if action.kind is Kind.FORWARD else 2
