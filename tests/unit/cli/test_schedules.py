from __future__ import annotations

from pathlib import Path

import pytest
import typer

from fxpipe.cli.schedules import read_schedule
from fxpipe.errors import FormatError
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.serial import to_json
from tests.unit.cli.models import backwards_schedule


def test_a_name_stays_a_name() -> None:
    assert read_schedule("gpipe") == "gpipe"


def test_text_and_json_files(tmp_path: Path) -> None:
    schedule = Schedule.from_text("0F0 0B0\n1F0 1B0", "mine")
    (tmp_path / "mine.txt").write_text("0F0 0B0\n1F0 1B0\n")
    (tmp_path / "mine.json").write_text(to_json(schedule))
    assert read_schedule(str(tmp_path / "mine.txt")) == schedule
    assert read_schedule(str(tmp_path / "mine.json")) == schedule


def test_a_function_of_a_module() -> None:
    assert read_schedule("tests.unit.cli.models:backwards_schedule") is backwards_schedule


def test_a_file_without_a_schedule_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("hello")
    with pytest.raises(typer.BadParameter, match="'hello' is no action"):
        read_schedule(str(tmp_path / "odd.txt"))
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(FormatError):
        read_schedule(str(tmp_path / "odd.json"))
