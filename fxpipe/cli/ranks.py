"""Devices, ranks and counts as the command line takes them."""

from __future__ import annotations

import typer

from fxpipe.options import ScheduleLike, chunks_for, stages_for


def device_names(text: str) -> list[str]:
    """``"2"`` → two CPU workers; ``"cuda:0,cuda:1"`` → these.

    Raises:
        typer.BadParameter: if there is no device in it.
    """
    if text.strip().lstrip("-").isdigit():
        names = ["cpu"] * int(text)
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter(
            f"{text!r} names no device: expected a number, or names with commas"
        )
    return names


def stage_count(
    stages: int | None, ranks: int, schedule: ScheduleLike = "1f1b", cuts: str = ""
) -> int:
    """Stages asked for, by number or by cuts; or as many as a schedule has, or is made for.

    Raises:
        typer.BadParameter: if a rank would have no stage.
    """
    named = sum(1 for name in cuts.split(",") if name.strip())
    count = 1 + named if named else stages_for(schedule, ranks)
    count = count if stages is None else stages
    if count < ranks:
        raise typer.BadParameter(f"{count} stages for {ranks} devices: a device would have none")
    return count


def chunk_count(
    chunks: int | None, ranks: int, rows: int | None = None, schedule: ScheduleLike = "1f1b"
) -> int:
    """Micro-batches asked for, or those of a schedule, or four per rank; not more than there are rows.

    Raises:
        typer.BadParameter: if it is not positive.
    """
    count = chunks_for(schedule, ranks) if chunks is None else chunks
    if count < 1:
        raise typer.BadParameter(f"at least one micro-batch is needed, got {count}")
    return count if rows is None else min(count, rows)
