"""`RankProgram`: a rank's actions with its transfers. What `lower` makes, `simulate` and `run` take."""

from __future__ import annotations

from dataclasses import dataclass

from fxpipe.ir.action import Action


@dataclass(frozen=True, slots=True)
class RankProgram:
    """Everything one rank does in one step, in order."""

    rank: int
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        return f"rank {self.rank}: " + " ".join(map(str, self.actions))
