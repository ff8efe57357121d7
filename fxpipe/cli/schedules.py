"""The schedule that a command line names."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Final

import typer

from fxpipe.cli.imports import import_object
from fxpipe.errors import FormatError, ScheduleError
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.serial import from_json
from fxpipe.ir.torch_order import from_torch_csv
from fxpipe.schedules.numbers import require_all_stages
from fxpipe.schedules.registry import SCHEDULES, Generator

_FILES: Final = (".txt", ".csv", ".json")
_TORCH_NAMES: Final = {
    "interleavedzerobubble": "interleaved-zb",
    "zbvzerobubble": "zb-v",
    "loopedbfs": "looped-bfs",
    "interleaved": "interleaved-1f1b",
    "zb1p": "zb-h1",
    "forwardonly": "forward",
}
"""Other names of theirs, hyphens left out."""


def read_schedule(text: str) -> str | Generator | Schedule:
    """A fixed schedule from a file, a function from a module, or a name as the registry has it.

    Raises:
        typer.BadParameter: if there is no such file, function or name, or no schedule in the file.
    """
    path = Path(text)
    if path.is_file():
        return _read_file(path)
    if ":" in text:
        made: Generator | Schedule = import_object(text, "schedule")
        if not callable(made) and not isinstance(made, Schedule):
            raise typer.BadParameter(f"{text} is neither a schedule nor a function that makes one")
        return made
    if path.suffix in _FILES or len(path.parts) > 1:
        raise typer.BadParameter(f"there is no file {text!r}")
    return schedule_name(text)


def title(schedule: str | Generator | Schedule, told: str) -> str:
    """What to call a schedule that was read from `told`."""
    return schedule if isinstance(schedule, str) else told


def schedule_name(text: str) -> str:
    """The name that is meant: case, hyphens and torch's ``Schedule…`` do not matter.

    Raises:
        typer.BadParameter: if there is none; the message says which ones are close.
    """
    names = {_key(name): name for name in SCHEDULES}
    key = _key(text).removeprefix("schedule")
    found = names.get(key) or _TORCH_NAMES.get(key)
    if found is not None:
        return found
    if key == "zbauto":
        raise typer.BadParameter(
            "zb-auto is made for costs and a limit of memory: 'fxpipe schedule search' tries it, "
            "fxpipe.schedules.zb_auto.zb_auto makes it"
        )
    near = [names[key] for key in get_close_matches(key, names, n=3, cutoff=0.5)]
    meant = f" did you mean {' or '.join(near)}?" if near else ""
    raise typer.BadParameter(
        f"there is no schedule {text!r};{meant} 'fxpipe schedule --list' shows all with a name; "
        "a file with a line of actions per rank, or MODULE:FUNCTION, will do as well"
    )


def _key(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _read_file(path: Path) -> Schedule:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {path}: {error}") from error
    try:
        schedule = _parsed(content, path)
        require_all_stages(schedule)
    except (FormatError, ScheduleError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error
    if not schedule.num_stages:
        raise typer.BadParameter(f"{path} has no actions in it")
    return schedule


def _parsed(content: str, path: Path) -> Schedule:
    if path.suffix == ".json":
        return from_json(content, Schedule)
    if path.suffix == ".csv":
        return from_torch_csv(content, path.stem)
    return Schedule.from_text(content, path.stem)
