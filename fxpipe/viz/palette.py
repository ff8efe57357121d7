"""The colours of all drawings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from fxpipe.ir.action import Compute, Kind, Update

INK: Final = "#1f2933"
MUTED: Final = "#7b8794"
LINE: Final = "#cbd2d9"
PAPER: Final = "#ffffff"
IDLE: Final = "#f0f2f5"
EDGE: Final = "#334e68"
INPUT: Final = "#7b8794"
PORTAL: Final = "#c2410c"

KIND_SHADES: Final = {
    Kind.FORWARD: ("#b6d2f5", "#7aabe6", "#4580c4", "#2c5c99"),
    Kind.BACKWARD: ("#f7c4b5", "#ee9680", "#cf6549", "#a3452d"),
    Kind.BACKWARD_INPUT: ("#fbdf9d", "#f0bd4f", "#c78a17", "#94640c"),
    Kind.BACKWARD_WEIGHT: ("#c6e6bf", "#8fcb84", "#559c4c", "#35722e"),
    Kind.RECOMPUTE: ("#d9dfe6", "#b3bdc9", "#7b8794", "#52606d"),
}
"""Kind → a shade for the first, second, … stage of a rank."""

KIND_NAME: Final = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "input gradient",
    Kind.BACKWARD_WEIGHT: "weight gradient",
    Kind.RECOMPUTE: "recomputation",
}

KIND_CODES: Final = {
    Kind.FORWARD: (153, 75),
    Kind.BACKWARD: (217, 209),
    Kind.BACKWARD_INPUT: (223, 214),
    Kind.BACKWARD_WEIGHT: (157, 77),
    Kind.RECOMPUTE: (253, 248),
}
"""Kind → the shades for terminals, out of their 256 colours."""

UPDATE_SHADES: Final = ("#e0cdf0", "#c3a1e0", "#8f66b5", "#654287")
UPDATE_NAME: Final = "update"
UPDATE_CODES: Final = (183, 141)
"""The same for optimiser steps."""

_STAGES: Final = ("#e3eefb", "#e6f4e6", "#fdf1dc", "#f3e8fa", "#fbe6e6", "#e2f4f4")


def stage_fill(stage: int) -> str:
    """A light background per stage; they repeat after six."""
    return _STAGES[stage % len(_STAGES)]


def kind_fill(kind: Kind, nth: int = 0) -> str:
    """The colour of a computation of the `nth` of a rank's stages; from the fourth on they are alike."""
    return _nth(KIND_SHADES[kind], nth)


def fill_of(action: Compute | Update, nth: int = 0) -> str:
    """The colour of what a rank does, for the `nth` of its stages."""
    return _nth(UPDATE_SHADES, nth) if isinstance(action, Update) else kind_fill(action.kind, nth)


def code_of(action: Compute | Update, nth: int = 0) -> int:
    """The same for terminals."""
    codes = UPDATE_CODES if isinstance(action, Update) else KIND_CODES[action.kind]
    return _nth(codes, nth)


_Shade = TypeVar("_Shade")


def _nth(shades: Sequence[_Shade], nth: int) -> _Shade:
    return shades[min(nth, len(shades) - 1)]


def ink_on(fill: str) -> str:
    """Dark or light, whichever is easier to read on `fill`."""
    red, green, blue = (int(fill[at : at + 2], 16) for at in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else PAPER
