"""The schedule that a command line names."""

from __future__ import annotations

from pathlib import Path

import typer

from fxpipe.cli.imports import import_object
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.serial import from_json
from fxpipe.schedules.registry import Generator


def read_schedule(text: str) -> str | Generator | Schedule:
    """A fixed schedule from a file, a function from a module, or the name itself.

    Raises:
        typer.BadParameter: if the file has no schedule in it, or there is no such function.
        FormatError: if the file is of another format.
    """
    path = Path(text)
    if path.is_file():
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return from_json(content, Schedule)
        try:
            return Schedule.from_text(content, path.stem)
        except ValueError as error:
            raise typer.BadParameter(f"{path}: {error}") from error
    if ":" in text:
        generator: Generator = import_object(text, "schedule")
        return generator
    return text
