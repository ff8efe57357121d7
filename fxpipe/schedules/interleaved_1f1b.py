"""Interleaved 1F1B: several stages per rank, depth first (Megatron-LM, arXiv 2104.04473)."""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_counts
from fxpipe.schedules.rounds import Rounds


def interleaved_1f1b(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """Rounds of p micro-batches through the v stages of a rank; then one forward, one backward.

    With p ranks of v stages each, m micro-batches in rounds of q (p, if p divides m), forward F and
    backward B of a whole rank, free links:

    - rank r warms up with ``(v - 1) q + 2 (p - 1 - r)`` forwards;
    - time ``m (F + B) + (p - 1)(F + B) / v`` if p divides m: the idle time of 1F1B divided by v;
    - rank r keeps ``min((v - 1) q + 2 (p - 1 - r) + 1, m v)`` stages' activations, each 1 / v of a
      rank's: rank 0 ``p (1 + (p - 1) / (p v))`` of them.

    The order is Megatron-LM's, which wants p to divide m, and torch's, which wants the number of
    rounds to. Here any m will do: a last round that is not full leaves its missing ones out.

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    rounds = Rounds.of(stages, ranks, micro_batches)

    def row(rank: int) -> Iterator[Compute]:
        warm_up = (rounds.stages_per_rank - 1) * rounds.size + 2 * (ranks - 1 - rank)
        warm_up = min(warm_up, rounds.steps)
        yield from (rounds.forward(rank, step) for step in range(warm_up))
        for step in range(rounds.steps):
            if step + warm_up < rounds.steps:
                yield rounds.forward(rank, step + warm_up)
            yield rounds.backward(Kind.BACKWARD, rank, step)

    return rounds.schedule(map(row, range(ranks)), "interleaved-1f1b")
