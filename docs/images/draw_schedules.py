"""Draws the gallery of docs/schedules.md: ``python docs/images/draw_schedules.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fxpipe.cli.chosen import Counts, choose
from fxpipe.cli.rank_cost import RankCost
from fxpipe.cli.schedule import clock
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.viz.timeline_svg import timeline_svg

HERE = Path(__file__).parent / "schedules"
RANKS, MICRO_BATCHES = 4, 8
SCALE, BESIDE = 26, 86
"""Pixels per unit of time, the same for all; and those left and right of the lanes."""


def pictures() -> Iterator[tuple[Path, str]]:
    """Every schedule with a name: its file, and what belongs into it."""
    for name in SCHEDULES:
        timeline = choose(name, Counts(RANKS, MICRO_BATCHES), RankCost()).timeline
        width = BESIDE + SCALE * timeline.makespan
        drawn = timeline_svg(timeline, titles=[name], width=width, clock=clock, tips=False)
        yield HERE / f"{name}.svg", drawn


def main() -> None:
    for path, drawn in pictures():
        path.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
