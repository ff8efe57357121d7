"""Timelines as SVG: a lane per rank, computations as boxes, bubbles as empty lane."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fxpipe.ir.action import Compute, Transfer
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.viz.palette import IDLE, INK, KIND_FILL, KIND_NAME, LINE, MUTED, PORTAL, shade
from fxpipe.viz.svg import Sheet, text_width
from fxpipe.viz.units import seconds_text

_LEFT, _RIGHT, _LANE, _GAP, _LINK = 70.0, 24.0, 30.0, 8.0, 5.0


def timeline_svg(*timelines: Timeline, titles: Sequence[str] = (), width: float = 1200) -> str:
    """The timelines one under another on one scale of time, for instance predicted and measured.

    Computations are boxes, coloured by kind and darker for the later stages of a rank; sends are
    thin bars under the lane of the rank that sends. Details show when the pointer rests on a box.

    Args:
        timelines: from top to bottom.
        titles: one per timeline; where missing, its source.
        width: of the picture in pixels.
    """
    sheet = Sheet()
    scale = (width - _LEFT - _RIGHT) / max([t.makespan for t in timelines if t.makespan] or [1.0])
    y = 20.0
    for index, timeline in enumerate(timelines):
        title = titles[index] if index < len(titles) else _title(timeline)
        y = _panel(sheet, timeline, title, y, scale, width)
    _legend(sheet, timelines, y)
    return sheet.svg(width, y + 24)


def _title(timeline: Timeline) -> str:
    return "predicted" if timeline.source == "simulate" else "measured"


def _panel(
    sheet: Sheet, timeline: Timeline, title: str, y: float, scale: float, width: float
) -> float:
    """One timeline; returns where the next thing may start."""
    facts = f"{seconds_text(timeline.makespan)}, bubble {timeline.bubble:.1%}"
    sheet.text(_LEFT, y + 6, title, size=14, bold=True)
    sheet.text(_LEFT + 1.1 * text_width(title, 14) + 20, y + 6, facts, size=12, colour=MUTED)
    y += 18
    first = min((span.start for span in timeline.spans), default=0.0)
    for rank in range(timeline.num_ranks):
        sheet.text(_LEFT - 10, y + _LANE / 2 + 4, f"rank {rank}", anchor="end", colour=MUTED)
        sheet.rect(_LEFT, y, timeline.makespan * scale, _LANE, IDLE)
        _lane(sheet, timeline, rank, y, scale, first)
        y += _LANE + _GAP
    _axis(sheet, timeline.makespan, y, scale)
    return y + 40


def _lane(
    sheet: Sheet, timeline: Timeline, rank: int, y: float, scale: float, first: float
) -> None:
    spans = [span for span in timeline.spans if span.rank == rank]
    stages = sorted({s.action.stage for s in spans if isinstance(s.action, Compute)})
    for span in spans:
        x, wide = _LEFT + (span.start - first) * scale, span.duration * scale
        match span.action:
            case Compute():
                fill = shade(KIND_FILL[span.action.kind], stages.index(span.action.stage))
                stroke = "#ffffff" if wide > 3 else "none"
                sheet.rect(x, y, wide, _LANE, fill, stroke=stroke, tip=_tip(span))
                _name(sheet, span.action, x + wide / 2, y, wide, len(stages) > 1)
            case Transfer() if span.action.direction == "send":
                sheet.rect(x, y + _LANE + 1, max(wide, 0.5), _LINK, PORTAL, tip=_tip(span))


def _name(
    sheet: Sheet, action: Compute, middle: float, y: float, wide: float, several: bool
) -> None:
    """The action's name, as long as the box has room for."""
    for text in (
        str(action) if several else f"{action.kind}{action.micro_batch}",
        f"{action.kind}",
    ):
        if text_width(text, 11) + 4 <= wide:
            sheet.text(middle, y + _LANE / 2 + 4, text, size=11, anchor="middle", colour=INK)
            return


def _tip(span: Span) -> str:
    return f"{span.action}: {seconds_text(span.duration)}, from {seconds_text(span.start)}"


def _axis(sheet: Sheet, makespan: float, y: float, scale: float) -> None:
    step = _step(makespan / 8)
    sheet.line(_LEFT, y, _LEFT + makespan * scale, y, LINE)
    for tick in range(math.floor(makespan / step + 1e-9) + 1) if makespan else ():
        x = _LEFT + tick * step * scale
        sheet.line(x, y, x, y + 4, LINE)
        sheet.text(x, y + 16, seconds_text(tick * step), size=10, anchor="middle", colour=MUTED)


def _step(atleast: float) -> float:
    """The smallest of 1, 2, 5 × a power of ten that is not below."""
    if atleast <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(atleast))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= atleast * (1 - 1e-9))


def _legend(sheet: Sheet, timelines: Sequence[Timeline], y: float) -> None:
    actions = [span.action for timeline in timelines for span in timeline.spans]
    kinds = {action.kind for action in actions if isinstance(action, Compute)}
    entries = [(KIND_FILL[kind], KIND_NAME[kind]) for kind in KIND_FILL if kind in kinds]
    entries.append((IDLE, "idle"))
    if any(isinstance(a, Transfer) and a.direction == "send" for a in actions):
        entries.append((PORTAL, "on a link"))
    x = _LEFT
    for fill, name in entries:
        sheet.rect(x, y - 9, 12, 12, fill, stroke=LINE)
        sheet.text(x + 18, y + 1, name, size=11, colour=MUTED)
        x += 18 + text_width(name, 11) + 22
