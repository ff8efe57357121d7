"""Timelines on a terminal."""

from __future__ import annotations

import math
import os
import shutil
import sys
from fractions import Fraction

import typer

from fxpipe.ir.timeline import Timeline
from fxpipe.viz.cells import shortest
from fxpipe.viz.lanes import Clock
from fxpipe.viz.terminal import fitting_unit, legend, terminal_grid
from fxpipe.viz.units import seconds_text

_WIDTH = 100
"""Characters of a line where there is no terminal."""

_FINEST = 4
"""Columns of the shortest computation, at most."""


def terminal_width(otherwise: int = _WIDTH) -> int:
    """Characters of a line; `otherwise` where there is no terminal."""
    return shutil.get_terminal_size((otherwise, 24)).columns


def wants_colour(asked: bool | None) -> bool:
    """What was asked for; if nothing, colours on terminals that have them."""
    if asked is not None:
        return asked
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def print_grid(
    timeline: Timeline,
    unit: float | None = None,
    *,
    colour: bool | None = None,
    clock: Clock = seconds_text,
) -> None:
    """Print a grid and its legend.

    Args:
        timeline: predicted or measured.
        unit: seconds per column; None: what fits into one block of lines.
        colour: None: if the terminal has colours.
        clock: writes seconds.
    """
    paint, width = wants_colour(colour), terminal_width()
    if unit is None:
        unit = fitting_unit(timeline, width)
    if unit:
        drawn = terminal_grid(timeline, unit, width=width, colour=paint, clock=clock)
        typer.echo(drawn, color=paint)
        typer.echo(f"\n{legend(timeline, colour=paint)}", color=paint)


def common_unit(timeline: Timeline) -> float:
    """The longest unit of which all durations are multiples; where it is very short, a longer one."""
    durations = {round(span.duration, 9) for span in timeline.spans} - {0.0}
    if not durations:
        return 0.0
    parts = [Fraction(duration).limit_denominator(1000) for duration in durations]
    below = math.lcm(*(part.denominator for part in parts))
    unit = math.gcd(*(int(part * below) for part in parts)) / below
    return max(unit, shortest(timeline) / _FINEST)
