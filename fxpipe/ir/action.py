"""What a rank can be told to do: `Compute`, `Transfer`, `Update`; `Action` is their union.

Schedules are made of cells: `Compute`, `Update`, or `Fused`, which is several computations in one.

The text form of compute actions is torch.distributed.pipelining's: ``2F0`` is the forward of
micro-batch 0 on stage 2, ``1I3`` an input-only backward, ``0W1`` a weight-only one, and
``(0F4;3B1)OVERLAP_F_B`` a cell of two. ``2R0``, a recomputation, and ``2U``, an update, are ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias


class Kind(StrEnum):
    """Kinds of computation of one stage on one micro-batch."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    RECOMPUTE = "R"
    """The forward run again, from what the stage read, for the sake of its backward."""


class Payload(StrEnum):
    """What a transfer carries."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"


class Direction(StrEnum):
    """Which end of a transfer an action is."""

    SEND = "send"
    RECV = "recv"


@dataclass(frozen=True, slots=True)
class Compute:
    """One computation of a stage on a micro-batch.

    Raises:
        ValueError: if a number is negative.
    """

    kind: Kind
    stage: int
    micro_batch: int

    def __post_init__(self) -> None:
        if self.stage < 0 or self.micro_batch < 0:
            raise ValueError(
                f"stages and micro-batches count from 0, got {self.stage} and {self.micro_batch}"
            )

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def from_text(cls, text: str) -> Compute:
        """The action that ``str`` wrote.

        Raises:
            ValueError: if the text is no compute action.
        """
        match = _COMPUTE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no action: {_hint(text)}")
        return cls(Kind(match[2]), int(match[1]), int(match[3]))


_COMPUTE: Final = re.compile(r"\s*(\d+)([FBIWR])(\d+)\s*")


def _hint(text: str) -> str:
    """What could have been meant."""
    if _COMPUTE.fullmatch(text.upper()):
        return f"kinds are capital letters, {text.strip().upper()!r}"
    if re.fullmatch(r"\d+(SEND|RECV)_[FB]\d+", text):
        return "transfers are added along the edges of the model's stages, leave them out"
    return (
        "expected <stage><F|B|I|W|R><micro-batch>, as in 2F0 (forward, backward, its input half and "
        f"its weight half, recomputation), <stage>U (update), or (0F4;3B1){_FUSED_SUFFIX}"
    )


@dataclass(frozen=True, slots=True)
class Fused:
    """Computations of one rank in one cell: it starts when what they need of others is there.

    They are run in the order given, and handed on at the cell's end. Inside, what one computes may
    overlap with what another has to wait for (a forward and a backward of other micro-batches, as in
    DualPipe); what an earlier one made, a later one may read.
    """

    actions: tuple[Compute, ...]

    def __post_init__(self) -> None:
        if len(self.actions) < 2:
            raise ValueError(f"a fused cell has two actions or more, got {len(self.actions)}")

    def __str__(self) -> str:
        return f"({';'.join(map(str, self.actions))}){_FUSED_SUFFIX}"


_FUSED_SUFFIX: Final = "OVERLAP_F_B"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One end of handing a value, or its gradient, from stage `source` to stage `target`."""

    direction: Direction
    payload: Payload
    value: str
    source: int
    target: int
    micro_batch: int

    def __str__(self) -> str:
        letter = "a" if self.payload is Payload.ACTIVATION else "g"
        return (
            f"{self.direction}[{letter}:{self.value}:{self.source}→{self.target}]{self.micro_batch}"
        )


@dataclass(frozen=True, slots=True)
class Update:
    """The optimiser step of a stage."""

    stage: int

    def __str__(self) -> str:
        return f"{self.stage}U"


Action: TypeAlias = Compute | Transfer | Update
"""What a rank does, one after another."""

Cell: TypeAlias = Compute | Fused | Update
"""What a schedule is made of."""

BACKWARDS: Final = (Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


def cell_from_text(text: str) -> Cell:
    """The cell that ``str`` wrote: ``2F0``, ``2U`` or ``(0F4;3B1)OVERLAP_F_B``.

    Raises:
        ValueError: if the text is no cell.
    """
    text = text.strip()
    if text.startswith("(") and text.endswith(f"){_FUSED_SUFFIX}"):
        inside = text[1 : -len(_FUSED_SUFFIX) - 1]
        return Fused(tuple(Compute.from_text(word) for word in inside.split(";")))
    if text.endswith("U") and text[:-1].isdecimal():
        return Update(int(text[:-1]))
    return Compute.from_text(text)


def computes_of(cell: Cell) -> tuple[Compute, ...]:
    """The computations of a cell, in order; none for an update."""
    if isinstance(cell, Compute):
        return (cell,)
    return cell.actions if isinstance(cell, Fused) else ()
