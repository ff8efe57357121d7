from __future__ import annotations

import pytest

from fxpipe.cli.grid import common_unit, print_grid, terminal_width, wants_colour
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.unit import unit_timeline
from tests.unit.simulator.rows import timeline_of


def test_the_unit_divides_all_durations() -> None:
    assert common_unit(timeline_of("0F0@0-1 0B0@1-3")) == 1.0
    assert common_unit(timeline_of("0F0@0-1 0B0@1-2.5")) == 0.5
    assert common_unit(timeline_of("0F0@0-0.3 0B0@1-1.2")) == pytest.approx(0.1)
    assert common_unit(timeline_of("0F0@0-2 0B0@2-6")) == 2.0
    assert common_unit(Timeline((), "run")) == 0.0
    assert common_unit(timeline_of("0F0@1-1")) == 0.0


def test_a_unit_that_would_be_very_short_gives_way_to_a_part_of_the_shortest_computation() -> None:
    assert common_unit(timeline_of("0F0@0-1 0B0@1-2.001 0F1@3-9")) == 0.25
    assert common_unit(timeline_of("0F0@0-1 0B0@1-2.25 0F1@3-9")) == 0.25
    assert common_unit(timeline_of("0F0@0-1 0B0@1-2.00001")) == 1.0


def test_a_grid_without_a_unit_fits_into_one_block(capsys: pytest.CaptureFixture[str]) -> None:
    step = unit_timeline(SCHEDULES["1f1b"](8, 8, 64), backward=2.0)
    print_grid(step)
    printed = capsys.readouterr().out
    assert printed.count("time") == 1
    assert max(map(len, printed.splitlines())) <= 100
    assert printed.endswith("\n\nF forward  B backward\n")


def test_nothing_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_grid(Timeline((), "run"))
    assert capsys.readouterr().out == ""


def test_columns_say_how_wide_a_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    assert terminal_width() == 33
    print_grid(unit_timeline(SCHEDULES["gpipe"](4, 4, 8)), 1.0)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 33
    monkeypatch.setenv("COLUMNS", "9")
    print_grid(unit_timeline(SCHEDULES["gpipe"](4, 4, 8)), 1.0)
    assert "no room for the grid: it takes 20 at least" in capsys.readouterr().out


def test_colours_as_asked_or_as_the_terminal_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wants_colour(True)
    assert not wants_colour(False)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert wants_colour(None)
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_colour(None)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(None)
