"""Depth-first rounds: the order in which a rank with several stages takes its micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Rounds:
    """Micro-batches in rounds: a rank takes one stage after another, each for the whole round.

        3 stages per rank, rounds of 2      0F0 0F1  2F0 2F1  4F0 4F1  0F2 0F3  2F2 2F3 …
        (2 ranks, the forwards of rank 0)   ── stage 0, 2, 4: round 0 ── ── round 1 ──

    Attributes:
        stages: number of stages; stage s is on rank ``s % ranks``.
        ranks: number of ranks.
        micro_batches: number of micro-batches.
        size: micro-batches per round. A last round that is not full is as if the missing ones were
            there and took no time.
    """

    stages: int
    ranks: int
    micro_batches: int
    size: int

    @classmethod
    def of(cls, stages: int, ranks: int, micro_batches: int) -> Rounds:
        """As many rounds of `ranks` micro-batches as there are, larger if some are left."""
        count = max(1, micro_batches // ranks)
        return cls(stages, ranks, micro_batches, -(-micro_batches // count))

    @property
    def stages_per_rank(self) -> int:
        """Stages per rank; of some, the last is not there if the numbers do not divide."""
        return -(-self.stages // self.ranks)

    @property
    def steps(self) -> int:
        """Forwards of a rank in full rounds (as many backwards)."""
        return -(-self.micro_batches // self.size) * self.size * self.stages_per_rank

    def forward(self, rank: int, step: int) -> Compute:
        """The forward number `step` of a rank."""
        turn, at = divmod(step, self.size)
        turn, local = divmod(turn, self.stages_per_rank)
        return Compute(Kind.FORWARD, local * self.ranks + rank, turn * self.size + at)

    def backward(self, kind: Kind, rank: int, step: int) -> Compute:
        """The backward (or its input or weight half) number `step` of a rank: last stage first."""
        turn, at = divmod(step, self.size)
        turn, local = divmod(turn, self.stages_per_rank)
        stage = (self.stages_per_rank - 1 - local) * self.ranks + rank
        return Compute(kind, stage, turn * self.size + at)

    def schedule(self, rows: Iterator[Iterator[Compute]], name: str) -> Schedule:
        """A schedule of what is there of the full rounds' actions, rank by rank.

        Leaving out micro-batches, or stages at the end of the chain, takes needs away and adds none:
        what was legal stays so.
        """
        ranks = tuple(tuple(action for action in row if self._is_there(action)) for row in rows)
        return Schedule(ranks, name)

    def _is_there(self, action: Compute) -> bool:
        return action.stage < self.stages and action.micro_batch < self.micro_batches
