"""The colours of all drawings."""

from __future__ import annotations

from typing import Final

from fxpipe.ir.action import Kind

INK: Final = "#1f2933"
MUTED: Final = "#7b8794"
LINE: Final = "#cbd2d9"
PAPER: Final = "#ffffff"
IDLE: Final = "#f0f2f5"
EDGE: Final = "#334e68"
INPUT: Final = "#7b8794"
PORTAL: Final = "#c2410c"

KIND_FILL: Final = {
    Kind.FORWARD: "#a7c7f0",
    Kind.BACKWARD: "#f4b6a6",
    Kind.BACKWARD_INPUT: "#f7d9a0",
    Kind.BACKWARD_WEIGHT: "#b9dfb4",
    Kind.RECOMPUTE: "#cfd8e3",
}

KIND_NAME: Final = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "input gradient",
    Kind.BACKWARD_WEIGHT: "weight gradient",
    Kind.RECOMPUTE: "recomputation",
}

_STAGES: Final = ("#e3eefb", "#e6f4e6", "#fdf1dc", "#f3e8fa", "#fbe6e6", "#e2f4f4")


def stage_fill(stage: int) -> str:
    """A light background per stage; they repeat after six."""
    return _STAGES[stage % len(_STAGES)]


def shade(colour: str, step: int) -> str:
    """`colour` a little darker for each `step`: later stages of one rank."""
    factor = max(0.55, 1.0 - 0.14 * step)
    channels = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{int(channel * factor):02x}" for channel in channels)
