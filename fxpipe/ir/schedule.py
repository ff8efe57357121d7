"""`Schedule`: what every rank computes, in order. It does not say when: there are no bubbles in it."""

from __future__ import annotations

from dataclasses import dataclass

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.plan import Placement


@dataclass(frozen=True)
class Schedule:
    """Per rank, the compute actions in order. The value users write, searches find, pictures show."""

    ranks: tuple[tuple[Compute, ...], ...]
    name: str = ""

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def num_stages(self) -> int:
        """Number of stages that have an action."""
        return 1 + max((a.stage for rank in self.ranks for a in rank), default=-1)

    @property
    def num_micro_batches(self) -> int:
        """Number of micro-batches that have an action."""
        return 1 + max((a.micro_batch for rank in self.ranks for a in rank), default=-1)

    @property
    def has_backward(self) -> bool:
        """Whether any action is a backward (False: forward only)."""
        return any(a.kind is not Kind.FORWARD for rank in self.ranks for a in rank)

    @property
    def placement(self) -> Placement:
        """The rank of every stage: where its actions stand."""
        where: dict[int, int] = {}
        for rank, actions in enumerate(self.ranks):
            for action in actions:
                where.setdefault(action.stage, rank)
        return Placement(tuple(where[stage] for stage in range(self.num_stages)))

    @classmethod
    def from_text(cls, text: str, name: str = "") -> Schedule:
        """One line per rank, actions separated by spaces or commas: ``0F0 0F1 0B0 0B1``.

        Raises:
            ValueError: if a word is no compute action.
        """
        rows = [
            line.replace(",", " ").split() for line in text.strip().splitlines() if line.strip()
        ]
        return cls(tuple(tuple(Compute.from_text(word) for word in row) for row in rows), name)

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, rank)) for rank in self.ranks)
