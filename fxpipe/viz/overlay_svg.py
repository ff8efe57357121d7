"""A measured step over its prediction, as SVG: two lanes per rank on one axis of time."""

from __future__ import annotations

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
from fxpipe.viz.palette import INK, MUTED
from fxpipe.viz.svg import Sheet, text_width
from fxpipe.viz.timeline_svg import facts
from fxpipe.viz.units import seconds_text

_MEASURED, _PREDICTED, _BETWEEN, _GAP = 26.0, 17.0, 6.0, 15.0
_BESIDE = 34.0
"""Room to the right of the lanes for busy shares."""

_LEAST = 1000.0


def overlay_svg(
    measured: Timeline,
    predicted: Timeline,
    *,
    width: float | None = None,
    clock: Clock = seconds_text,
    tips: bool = True,
) -> str:
    """Under every rank's measured lane its predicted one, lower; both from the start of the step.

    Args:
        measured: what ran.
        predicted: what was expected.
        width: of the picture in pixels; None: wide enough to read the numbers.
        clock: writes seconds.
        tips: whether details show when the pointer rests on a box.
    """
    sheet = Sheet()
    both = (measured, predicted)
    wide = max(fitting_width(both), _LEAST) if width is None else width
    room = wide - LEFT - RIGHT - _BESIDE
    ruler = Ruler(room / (max(one.makespan for one in both) or 1.0), clock, tips)
    y = 24.0
    for title, timeline in (("measured", measured), ("predicted", predicted)):
        sheet.text(LEFT, y, title, size=14, bold=True)
        after = LEFT + 1.1 * text_width("predicted", 14) + 14
        sheet.text(after, y, facts(timeline, clock), size=12, colour=MUTED)
        y += 19
    sheet.text(wide - RIGHT, y - 8, "busy", size=11, anchor="end", colour=MUTED)
    upper, lower = Lanes(measured, _MEASURED, ruler), Lanes(predicted, _PREDICTED, ruler)
    for rank in range(max(one.num_ranks for one in both)):
        sheet.text(LEFT - 8, y + _MEASURED / 2 + 4, f"rank {rank}", anchor="end", colour=INK)
        upper.draw(sheet, rank, y)
        _tell_share(sheet, measured, rank, wide - RIGHT, y + _MEASURED / 2)
        y += _MEASURED + _BETWEEN
        middle = y + _PREDICTED / 2
        sheet.text(LEFT - 8, middle + 3.5, "predicted", size=10, anchor="end", colour=MUTED)
        lower.draw(sheet, rank, y)
        _tell_share(sheet, predicted, rank, wide - RIGHT, middle)
        y += _PREDICTED + _GAP
    draw_axis(sheet, max(one.makespan for one in both), y, ruler)
    draw_legend(sheet, both, y + 40)
    return sheet.svg(wide, y + 56)


def _tell_share(sheet: Sheet, timeline: Timeline, rank: int, x: float, middle: float) -> None:
    """What share of the step a rank computes."""
    if timeline.makespan:
        share = f"{timeline.busy(rank) / timeline.makespan:.0%}"
        sheet.text(x, middle + 4, share, size=11, anchor="end", colour=MUTED)
