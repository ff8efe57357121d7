"""A rank's computations as a lane of boxes: what the drawings of timelines are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fxpipe.ir.action import Compute, Direction, Transfer, Update
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.viz.cells import Work, computations, has_several, name_of, stages_of, work_of
from fxpipe.viz.palette import (
    IDLE,
    KIND_NAME,
    LINE,
    MUTED,
    PAPER,
    PORTAL,
    UPDATE_NAME,
    UPDATE_SHADES,
    fill_of,
    ink_on,
    kind_fill,
)
from fxpipe.viz.svg import Sheet, text_width

Clock = Callable[[float], str]
"""Seconds → text."""

LEFT, RIGHT = 62.0, 24.0
_SEND = 4.0
_BOX, _LEAST, _MOST = 19.0, 600.0, 2200.0
"""Width of the shortest boxes, if the whole is not narrower or wider than these."""

_TEXT, _SMALLEST = 11.0, 7.5


@dataclass(frozen=True, slots=True)
class Ruler:
    """What all lanes of a drawing share.

    Attributes:
        scale: pixels per second.
        clock: writes seconds.
        tips: whether details show when the pointer rests on a box; without, the file is smaller.
    """

    scale: float
    clock: Clock
    tips: bool = True

    def x(self, seconds: float) -> float:
        """Where a moment is, from the first start."""
        return LEFT + seconds * self.scale


def fitting_width(timelines: Sequence[Timeline]) -> float:
    """A width at which micro-batches can be read, within limits."""
    needed = [_LEAST]
    for timeline in timelines:
        if short := _short(timeline):
            needed.append(timeline.makespan / short * _BOX)
    return LEFT + RIGHT + min(max(needed), _MOST)


def _short(timeline: Timeline) -> float:
    """Seconds that nine in ten computations take at least."""
    durations = sorted(span.duration for span in computations(timeline))
    return durations[len(durations) // 10] if durations else 0.0


class Lanes:
    """The lanes of a timeline, a rank in each, all of one height."""

    def __init__(self, timeline: Timeline, height: float, ruler: Ruler) -> None:
        self._timeline = timeline
        self._height = height
        self._ruler = ruler
        self._first = min((span.start for span in timeline.spans), default=0.0)
        self._name, self._size = _naming(timeline, height, ruler)
        self._sends: dict[int, list[Span]] = {}
        for span in filter(is_send, timeline.spans):
            self._sends.setdefault(span.rank, []).append(span)

    def draw(self, sheet: Sheet, rank: int, y: float) -> None:
        """A rank's computations, coloured by kind, darker for its later stages; its sends under them."""
        ground = self._timeline.makespan * self._ruler.scale
        sheet.rect(LEFT, y, ground, self._height, IDLE)
        self._draw_boxes(sheet, rank, y)
        self._draw_names(sheet, rank, y)
        for span in self._sends.get(rank, ()):
            x, wide = self._place(span)
            tip = self._tip(span) if self._ruler.tips else ""
            sheet.rect(x, y + self._height + 1, max(wide, 0.5), _SEND, PORTAL, tip=tip)

    def _draw_boxes(self, sheet: Sheet, rank: int, y: float) -> None:
        tiles: dict[str, list[tuple[float, float, float, float]]] = {}
        for span, _, fill in self._filled(rank):
            x, wide = self._place(span)
            if self._ruler.tips:
                stroke = PAPER if wide > 3 else "none"
                sheet.rect(x, y, wide, self._height, fill, stroke=stroke, tip=self._tip(span))
            else:
                tiles.setdefault(fill, []).append((x, y, wide, self._height))
        for fill, rects in tiles.items():
            sheet.tiles(rects, fill)

    def _draw_names(self, sheet: Sheet, rank: int, y: float) -> None:
        """Computations by name, or by number where names have no room; in one size."""
        baseline = y + self._height / 2 + 0.36 * self._size
        words: dict[str, list[tuple[float, float, str]]] = {}
        for span, action, fill in self._filled(rank):
            x, wide = self._place(span)
            text = self._name(action)
            if text_width(text, self._size) <= wide:
                words.setdefault(ink_on(fill), []).append((x + wide / 2, baseline, text))
        for ink, placed in words.items():
            sheet.words(placed, size=self._size, colour=ink)

    def _filled(self, rank: int) -> Iterator[tuple[Span, Work, str]]:
        """Computations, updates, and their colours."""
        spans = self._timeline.work_spans(rank)
        stages = stages_of(spans)
        for span in spans:
            action = work_of(span)
            yield span, action, fill_of(action, stages.index(action.stage))

    def _place(self, span: Span) -> tuple[float, float]:
        """Where it starts, and how wide it is."""
        return self._ruler.x(span.start - self._first), span.duration * self._ruler.scale

    def _tip(self, span: Span) -> str:
        clock = self._ruler.clock
        return f"{span.action}: {clock(span.duration)}, from {clock(span.start - self._first)}"


def is_send(span: Span) -> bool:
    """Whether the span is a value on its way over a link."""
    return isinstance(span.action, Transfer) and span.action.direction is Direction.SEND


def _naming(timeline: Timeline, height: float, ruler: Ruler) -> tuple[Callable[[Work], str], float]:
    """How computations are called so that there is room for it in nine of ten, and in which size."""
    several = has_several(timeline)
    actions = [work_of(span) for span in computations(timeline)]
    room = _short(timeline) * ruler.scale - 1

    def full(action: Work) -> str:
        return name_of(action, several)

    def number(action: Work) -> str:
        return str(action.micro_batch) if isinstance(action, Compute) else "U"

    most = min(_TEXT, height - 4)
    if max(map(len, map(full, actions)), default=0) * text_width("0", most) <= room - 4:
        return full, most
    longest = max(map(len, map(number, actions)), default=1)
    return number, min(most, max(_SMALLEST, room / text_width("0" * longest, 1.0)))


def draw_axis(sheet: Sheet, makespan: float, y: float, ruler: Ruler) -> None:
    """The time under the lanes."""
    step = _step(makespan / max(1.0, min(10.0, makespan * ruler.scale / 80)))
    sheet.line(LEFT, y, ruler.x(makespan), y, LINE)
    for tick in range(math.floor(makespan / step + 1e-9) + 1) if makespan else ():
        x = ruler.x(tick * step)
        sheet.line(x, y, x, y + 4, LINE)
        text = ruler.clock(round(tick * step, 12))
        sheet.text(x, y + 16, text, size=10, anchor="middle", colour=MUTED)


def _step(atleast: float) -> float:
    """The smallest of 1, 2, 5 × a power of ten that is not below."""
    if atleast <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(atleast))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= atleast * (1 - 1e-9))


def draw_legend(sheet: Sheet, timelines: Sequence[Timeline], y: float) -> None:
    """What the colours mean."""
    spans = [span for timeline in timelines for span in timeline.spans]
    kinds = {span.action.kind for span in spans if isinstance(span.action, Compute)}
    entries = [(kind_fill(kind), name) for kind, name in KIND_NAME.items() if kind in kinds]
    if any(isinstance(span.action, Update) for span in spans):
        entries.append((UPDATE_SHADES[0], UPDATE_NAME))
    entries.append((IDLE, "idle"))
    if any(is_send(span) for span in spans):
        entries.append((PORTAL, "on a link"))
    x = LEFT
    for fill, name in entries:
        sheet.rect(x, y - 9, 12, 12, fill, stroke=LINE)
        sheet.text(x + 18, y + 1, name, size=11, colour=MUTED)
        x += 18 + text_width(name, 11) + 18
    if any(has_several(timeline) for timeline in timelines):
        sheet.text(x, y + 1, "darker: later stages of the rank", size=11, colour=MUTED)
