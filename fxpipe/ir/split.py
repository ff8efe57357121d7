"""`Split` and `Replicate`: how an input is shared out over the micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Split:
    """An input is cut into micro-batches along a dimension.

    Attributes:
        dim: where its rows lie; negative: counted from the last dimension.
    """

    dim: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise TypeError(f"Split takes a dimension (an int), got {self.dim!r}")


@dataclass(frozen=True, slots=True)
class Replicate:
    """An input is given whole to every micro-batch."""


SplitRule: TypeAlias = Split | Replicate
