"""What a rank can be told to do: `Compute`, `Transfer`, `Update`; `Action` is their union.

The text form of compute actions is torch.distributed.pipelining's: ``2F0`` is the forward of
micro-batch 0 on stage 2, ``1I3`` an input-only backward, ``0W1`` a weight-only one.
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
    """One computation of a stage on a micro-batch."""

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def from_text(cls, text: str) -> Compute:
        """The action that ``str`` wrote.

        Raises:
            ValueError: if the text is no compute action.
        """
        match = re.fullmatch(r"\s*(\d+)([FBIW])(\d+)\s*", text)
        if match is None:
            raise ValueError(
                f"{text!r} is no action: expected <stage><F|B|I|W><micro-batch>, as in 2F0"
            )
        return cls(Kind(match[2]), int(match[1]), int(match[3]))


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

BACKWARDS: Final = (Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
