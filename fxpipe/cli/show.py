"""What several subcommands print."""

from __future__ import annotations

from pathlib import Path

import typer

from fxpipe.ir.timeline import Timeline
from fxpipe.simulator.metrics import bubble_fraction, bubble_ratio
from fxpipe.viz.units import seconds_text


def step_line(timeline: Timeline) -> str:
    """Step time, and the bubble by both conventions."""
    return (
        f"step {seconds_text(timeline.makespan)}, "
        f"bubble {bubble_fraction(timeline):.1%} of the total ({bubble_ratio(timeline):.1%} of ideal)"
    )


def write(path: Path, text: str) -> None:
    """Write a file, make its folder, say so.

    Raises:
        typer.BadParameter: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}") from error
    typer.echo(f"wrote {path}")
