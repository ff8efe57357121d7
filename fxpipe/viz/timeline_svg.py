"""Timelines as SVG: a lane per rank, computations as boxes, bubbles as empty lane."""

from __future__ import annotations

from collections.abc import Sequence

from fxpipe.ir.timeline import Timeline
from fxpipe.viz.lanes import (
    LEFT,
    RIGHT,
    Clock,
    Lanes,
    Ruler,
    draw_axis,
    draw_legend,
    fitting_width,
)
from fxpipe.viz.palette import MUTED
from fxpipe.viz.svg import Sheet, text_width
from fxpipe.viz.units import seconds_text

_LANE, _GAP = 26.0, 7.0


def timeline_svg(
    *timelines: Timeline,
    titles: Sequence[str] = (),
    width: float | None = None,
    clock: Clock = seconds_text,
    tips: bool = True,
) -> str:
    """The timelines one under another on one scale of time, for instance those of two schedules.

    Computations are boxes with the number of their micro-batch, coloured by kind and darker for the
    later stages of a rank; sends are thin bars under the lane of the rank that sends.

    Args:
        timelines: from top to bottom.
        titles: one per timeline; where missing, its source.
        width: of the picture in pixels; None: wide enough to read the numbers.
        clock: writes seconds.
        tips: whether details show when the pointer rests on a box; without, the file is smaller.
    """
    sheet = Sheet()
    wide = fitting_width(timelines) if width is None else width
    longest = max([t.makespan for t in timelines if t.makespan] or [1.0])
    ruler = Ruler((wide - LEFT - RIGHT) / longest, clock, tips)
    y = 20.0
    for index, timeline in enumerate(timelines):
        title = titles[index] if index < len(titles) else source_title(timeline)
        y = _panel(sheet, timeline, title, y, ruler)
    draw_legend(sheet, timelines, y)
    return sheet.svg(wide, y + 16)


def source_title(timeline: Timeline) -> str:
    """What a timeline is called that has no other name."""
    return "predicted" if timeline.source == "simulate" else "measured"


def facts(timeline: Timeline, clock: Clock) -> str:
    """Step and bubble, for a title."""
    return f"{clock(timeline.makespan)}, bubble {timeline.bubble:.1%}"


def _panel(sheet: Sheet, timeline: Timeline, title: str, y: float, ruler: Ruler) -> float:
    """One timeline; returns where the next thing may start."""
    sheet.text(LEFT, y + 4, title, size=14, bold=True)
    after = LEFT + 1.1 * text_width(title, 14) + 14
    sheet.text(after, y + 4, facts(timeline, ruler.clock), size=12, colour=MUTED)
    y += 16
    lanes = Lanes(timeline, _LANE, ruler)
    for rank in range(timeline.num_ranks):
        sheet.text(LEFT - 8, y + _LANE / 2 + 4, f"rank {rank}", anchor="end", colour=MUTED)
        lanes.draw(sheet, rank, y)
        y += _LANE + _GAP
    draw_axis(sheet, timeline.makespan, y, ruler)
    return y + 38
