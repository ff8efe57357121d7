from __future__ import annotations

import re

from fxpipe.ir.cost import StageCost
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.insert import with_updates
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.unit import unit_timeline
from fxpipe.viz.terminal import legend, terminal_grid

STEP = unit_timeline(SCHEDULES["1f1b"](3, 3, 4))
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


def test_a_line_per_rank_under_the_time() -> None:
    assert terminal_grid(STEP, 1.0) == "\n".join(
        [
            "time    0              5              10",
            "rank 0  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3",
            "rank 1  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .",
            "rank 2  .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .",
        ]
    )


def test_it_wraps_to_the_width() -> None:
    text = terminal_grid(STEP, 1.0, width=25)
    assert text == "\n".join(
        [
            "time    0",
            "rank 0  F0 F1 F2 .  .",
            "rank 1  .  F0 F1 .  B0",
            "rank 2  .  .  F0 B0 F1",
            "",
            "time    5",
            "rank 0  B0 F3 B1 .  B2",
            "rank 1  F2 B1 F3 B2 .",
            "rank 2  B1 F2 B2 F3 B3",
            "",
            "time    10",
            "rank 0  .  B3",
            "rank 1  B3 .",
            "rank 2  .  .",
        ]
    )


def test_no_line_is_longer_than_the_width() -> None:
    step = unit_timeline(SCHEDULES["zb-v"](16, 8, 32), backward=2.0)
    for width in (30, 61, 80, 137):
        for colour in (False, True):
            lines = ESCAPE.sub(
                "", terminal_grid(step, 1.0, width=width, colour=colour)
            ).splitlines()
            assert max(map(len, lines)) <= width + (lines[-1].startswith("(") and 60)


def test_a_width_without_room_says_how_much_it_takes() -> None:
    text = terminal_grid(STEP, 1.0, width=12)
    assert text == "(a line of 12 characters has no room for the grid: it takes 20 at least)"
    assert terminal_grid(STEP, 1.0, width=20).startswith("time")


def test_more_blocks_than_wanted_are_left_out_and_counted() -> None:
    text = terminal_grid(STEP, 1.0, width=25, blocks=2)
    assert text.endswith("(2 more columns: a wider terminal shows more of them, a drawing all)")
    assert text.count("time") == 2


def test_the_clock_tells_seconds() -> None:
    head = terminal_grid(STEP, 1.0, clock="{:g} sec".format).splitlines()[0]
    assert head == "time    0 sec          5 sec          10 sec"
    longer = terminal_grid(STEP, 1.0, clock="{:g} very long seconds".format).splitlines()[0]
    assert longer == "time    0 very long seconds           10 very long seconds"


def test_colours_change_nothing_but_dots_and_dashes() -> None:
    step = unit_timeline(SCHEDULES["1f1b"](2, 2, 3), backward=2.0)
    plain = terminal_grid(step, 1.0).replace("-", " ").replace(".", "·")
    coloured = terminal_grid(step, 1.0, colour=True)
    assert "\x1b[38;5;16;48;5;153m" in coloured
    stripped = [line.rstrip() for line in ESCAPE.sub("", coloured).splitlines()]
    assert stripped == [line.rstrip() for line in plain.splitlines()]
    assert coloured.count("\x1b[0m") == coloured.count("\x1b[38")


def test_legend() -> None:
    assert legend(STEP) == "F forward  B backward"
    split = unit_timeline(SCHEDULES["zb-h1"](2, 2, 2))
    assert legend(split) == "F forward  I input gradient  W weight gradient"
    assert ESCAPE.sub("", legend(STEP, colour=True)) == " F  forward   B  backward"


def test_nothing_has_no_cells() -> None:
    assert terminal_grid(Timeline((), "run"), 1.0) == ""
    assert legend(Timeline((), "run")) == ""


def test_updates_that_take_time_are_shown() -> None:
    schedule = with_updates(SCHEDULES["1f1b"](2, 2, 1))
    costs = [StageCost(1.0, 1.0, update=2.0)] * 2
    step = simulate(lower(schedule, linear(2)), costs)
    assert terminal_grid(step, 1.0).splitlines()[1:] == [
        "rank 0  F0 .  .  B0 U  -",
        "rank 1  .  F0 B0 U  -  .",
    ]
    assert legend(step) == "F forward  B backward  U update"
    coloured = ESCAPE.sub("", legend(step, colour=True)).replace("  ", " ").split()
    assert coloured == ["F", "forward", "B", "backward", "U", "update"]
