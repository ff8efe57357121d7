from __future__ import annotations

from pathlib import Path

import pytest
import typer

from fxpipe.cli.schedules import read_schedule, schedule_name, title
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.serial import to_json
from fxpipe.schedules.registry import SCHEDULES
from tests.unit.cli.models import backwards_schedule


def test_a_name_stays_a_name() -> None:
    for name in SCHEDULES:
        assert read_schedule(name) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1F1B", "1f1b"),
        ("ZBV", "zb-v"),
        ("zb_h1", "zb-h1"),
        ("Interleaved 1F1B", "interleaved-1f1b"),
        ("ScheduleGPipe", "gpipe"),
        ("ScheduleInterleavedZeroBubble", "interleaved-zb"),
        ("ScheduleZBVZeroBubble", "zb-v"),
        ("ScheduleDualPipeV", "dualpipe-v"),
    ],
)
def test_case_and_hyphens_do_not_matter_and_torchs_names_will_do(text: str, name: str) -> None:
    assert read_schedule(text) == name


@pytest.mark.parametrize(
    ("text", "meant"),
    [("1fb1", "1f1b"), ("g-pipes", "gpipe"), ("zb-h3", "zb-h1 or "), ("hanyo", "hanayo")],
)
def test_near_misses_get_suggestions(text: str, meant: str) -> None:
    with pytest.raises(typer.BadParameter, match=rf"no schedule '{text}'; did you mean .*{meant}"):
        read_schedule(text)


def test_a_name_that_is_near_none_is_told_where_they_are() -> None:
    with pytest.raises(typer.BadParameter, match="no schedule 'xyzzy'; 'fxpipe schedule --list'"):
        read_schedule("xyzzy")
    with pytest.raises(typer.BadParameter, match="no file 'folder/mine'"):
        read_schedule("folder/mine")


def test_title() -> None:
    assert title("1f1b", "1F1B") == "1f1b"
    assert title(Schedule.from_text("0F0"), "mine.txt") == "mine.txt"


def test_text_and_json_files(tmp_path: Path) -> None:
    schedule = Schedule.from_text("0F0 0B0\n1F0 1B0", "mine")
    (tmp_path / "mine.txt").write_text("0F0 0B0\n1F0 1B0\n")
    (tmp_path / "mine.json").write_text(to_json(schedule))
    assert read_schedule(str(tmp_path / "mine.txt")) == schedule
    (tmp_path / "mine.csv").write_text("0F0,,0SEND_F0,0B0\n,1F0,1B0\n")
    assert read_schedule(str(tmp_path / "mine.json")) == schedule
    assert read_schedule(str(tmp_path / "mine.csv")) == schedule


def test_a_function_of_a_module() -> None:
    assert read_schedule("tests.unit.cli.models:backwards_schedule") is backwards_schedule
    assert read_schedule("fxpipe.schedules.registry:gpipe") is SCHEDULES["gpipe"]
    with pytest.raises(typer.BadParameter, match="neither a schedule nor a function"):
        read_schedule("fxpipe:__version__")


def test_a_file_without_a_schedule_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("hello")
    with pytest.raises(typer.BadParameter, match="'hello' is no action"):
        read_schedule(str(tmp_path / "odd.txt"))
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(typer.BadParameter, match=r"empty.txt: .* has no actions in it"):
        read_schedule(str(tmp_path / "empty.txt"))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(typer.BadParameter, match=r"cannot read .*bytes.txt"):
        read_schedule(str(tmp_path / "bytes.txt"))
    for name, text in (("odd.json", "{}"), ("cut.json", "{"), ("odd.csv", "a,b")):
        (tmp_path / name).write_text(text)
        with pytest.raises(typer.BadParameter, match=name):
            read_schedule(str(tmp_path / name))


def test_a_schedule_made_for_costs_says_where_it_is_found() -> None:
    with pytest.raises(typer.BadParameter, match="'fxpipe schedule search' tries it"):
        schedule_name("zb-auto")
