"""`RankProgram`: a rank's actions with its transfers. What `lower` makes, `simulate` and `run` take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fxpipe.ir.action import Action, Compute


@dataclass(frozen=True, slots=True)
class RankProgram:
    """Everything one rank does in one step, in order."""

    rank: int
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        return f"rank {self.rank}: " + " ".join(map(str, self.actions))


def homes_of(programs: Sequence[RankProgram]) -> dict[tuple[int, int], int]:
    """Stage and micro-batch → the rank that computes it."""
    return {
        (action.stage, action.micro_batch): program.rank
        for program in programs
        for action in program.actions
        if isinstance(action, Compute)
    }
