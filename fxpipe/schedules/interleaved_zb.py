"""Interleaved zero bubble: interleaved 1F1B with split backwards (arXiv 2401.10241, torch's ZB1P)."""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_counts
from fxpipe.schedules.rounds import Rounds


def interleaved_zb(stages: int, ranks: int, micro_batches: int) -> Schedule:
    """As interleaved 1F1B, with half the warm-up; rank r runs its weight halves r steps late.

    With p ranks of v stages each, m micro-batches (p divides m), F = I = W of a whole rank, free links:

    - rank r warms up with ``(v - 1) p + p - 1 - r`` forwards;
    - time ``m (F + I + W) + (p - 1) F / v``: no schedule with v stages per rank is faster;
    - every rank keeps p activations of a whole rank (those whose weight halves are due counted in
      full), that is 1F1B's peak of rank 0.

    For one stage per rank this is ZB-H1. Any m will do, as for interleaved 1F1B.

    Raises:
        ScheduleError: for counts that no schedule can have.
    """
    require_counts(stages, ranks, micro_batches)
    rounds = Rounds.of(stages, ranks, micro_batches)
    rows = (zero_bubble_row(rounds, rank, rank) for rank in range(ranks))
    return rounds.schedule(rows, "interleaved-zb")


def zero_bubble_row(rounds: Rounds, rank: int, lag: int, extra: int = 0) -> Iterator[Compute]:
    """A rank's warm-up, then forward, input half, and the weight half of `lag` steps ago.

    Args:
        rounds: the order of forwards and backwards.
        rank: whose row.
        lag: steps by which the weight halves come late.
        extra: forwards more than ``ranks - 1 - rank`` to warm up with.
    """
    warm_up = (rounds.stages_per_rank - 1) * rounds.size + rounds.ranks - 1 - rank + extra
    warm_up = min(warm_up, rounds.steps)
    yield from (rounds.forward(rank, step) for step in range(warm_up))
    for step in range(rounds.steps):
        if step + warm_up < rounds.steps:
            yield rounds.forward(rank, step + warm_up)
        yield rounds.backward(Kind.BACKWARD_INPUT, rank, step)
        if step >= lag:
            yield rounds.backward(Kind.BACKWARD_WEIGHT, rank, step - lag)
    for step in range(max(0, rounds.steps - lag), rounds.steps):
        yield rounds.backward(Kind.BACKWARD_WEIGHT, rank, step)
