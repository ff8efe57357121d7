"""Stage graphs as SVG: stages in a row, neighbours' values between them, portals in arcs above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.stage import HOST, StageGraph
from fxpipe.viz.bundles import Bundle, bundles, stage_name
from fxpipe.viz.labels import stage_rows
from fxpipe.viz.palette import EDGE, INK, INPUT, LINE, MUTED, PAPER, PORTAL, stage_fill
from fxpipe.viz.svg import Sheet, text_width
from fxpipe.viz.units import bytes_text

_MARGIN, _HEAD, _ROW, _LANE, _TEXT, _SMALL = 28.0, 34.0, 19.0, 30.0, 11.0, 10.0


def graph_svg(
    graph: StageGraph,
    plan: PartitionPlan | None = None,
    names: Mapping[str, str] | None = None,
    *,
    title: str = "",
) -> str:
    """The stages with what they consist of, and the values between them with their bytes.

    Values for the next stage are solid arrows; portals are dashed arcs over the stages they skip;
    what the caller gives comes from below. Every line's values show when the pointer rests on it.

    Args:
        graph: the stages and the values between them.
        plan: what each stage consists of; stages are empty boxes without it.
        names: node name → label (see `fxpipe.viz.labels.labels`).
        title: above the picture.
    """
    rows = [
        stage_rows(plan, names or {}, stage) if plan is not None else ()
        for stage in range(graph.num_stages)
    ]
    lines = bundles(graph)
    arcs = _arcs([line for line in lines if line.is_portal])
    boxes = _boxes(rows, lines, top=_MARGIN + (30 if title else 0) + _LANE * _height(arcs) + 12)
    sheet = Sheet()
    for box, content in zip(boxes, rows, strict=True):
        _draw_box(sheet, box, content)
    for line in lines:
        if not line.is_portal and line.source != HOST:
            _draw_neighbour(sheet, line, boxes)
    _draw_inputs(sheet, [line for line in lines if line.source == HOST], boxes)
    for arc in arcs:
        _draw_arc(sheet, arc, boxes)
    width = max(boxes[-1].right + _MARGIN, 420.0)
    if title:
        sheet.text(_MARGIN, 34, title, size=15, bold=True)
    y = boxes[0].bottom + (70 if graph.inputs else 30)
    _legend(sheet, graph, y)
    return sheet.svg(width, y + 24)


@dataclass(frozen=True, slots=True)
class _Box:
    """Where a stage is drawn."""

    stage: int
    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class _Arc:
    """A portal's line: its lane above the stages, and its places on the two upper sides (0 to 1)."""

    bundle: Bundle
    lane: int
    leave: float
    arrive: float


def _boxes(rows: Sequence[Sequence[str]], lines: Sequence[Bundle], top: float) -> list[_Box]:
    """All boxes have one height; the gaps have room for the labels in them."""
    height = _HEAD + _ROW * max([len(content) for content in rows] or [0]) + 14
    boxes: list[_Box] = []
    left = _MARGIN
    for stage, content in enumerate(rows):
        width = max([140.0, *(text_width(row, _TEXT) + 30 for row in content)])
        boxes.append(_Box(stage, left, top, width, height))
        into_next = [line for line in lines if line.source == stage and not line.is_portal]
        label = max(
            [text_width(part, _SMALL) for line in into_next for part in _parts(line)] or [0]
        )
        left += width + max(60.0, label + 26)
    return boxes


def _parts(line: Bundle) -> list[str]:
    """A neighbours' line in rows: up to three values and the sum."""
    names = [f"{edge.value}" for edge in line.edges]
    shown = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
    return [*shown, bytes_text(line.nbytes)]


def _arcs(portals: Sequence[Bundle]) -> list[_Arc]:
    """Short portals low, long ones high, none over another in one lane; ends apart and nested."""
    lanes: list[list[Bundle]] = []
    lane_of: dict[Bundle, int] = {}
    for line in sorted(portals, key=lambda b: (b.target - b.source, b.source)):
        lane = next(
            (
                at
                for at, taken in enumerate(lanes)
                if at >= _below(line, lane_of) and _free(line, taken)
            ),
            len(lanes),
        )
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(line)
        lane_of[line] = lane
    arcs = []
    for line in portals:
        out = sorted((b for b in portals if b.source == line.source), key=lambda b: -lane_of[b])
        into = sorted((b for b in portals if b.target == line.target), key=lambda b: lane_of[b])
        leave = 0.55 + 0.4 * (out.index(line) + 0.5) / len(out)
        arrive = 0.05 + 0.4 * (into.index(line) + 0.5) / len(into)
        arcs.append(_Arc(line, lane_of[line], leave, arrive))
    return arcs


def _below(line: Bundle, lane_of: Mapping[Bundle, int]) -> int:
    """The first lane above all lines that lie within this one."""
    within = [
        at for b, at in lane_of.items() if line.source <= b.source and b.target <= line.target
    ]
    return max(within, default=-1) + 1


def _free(line: Bundle, taken: Sequence[Bundle]) -> bool:
    return all(line.target <= b.source or b.target <= line.source for b in taken)


def _height(arcs: Sequence[_Arc]) -> int:
    return max((arc.lane for arc in arcs), default=-1) + 1


def _draw_box(sheet: Sheet, box: _Box, rows: Sequence[str]) -> None:
    sheet.rect(
        box.left, box.top, box.width, box.height, stage_fill(box.stage), stroke=LINE, radius=8
    )
    sheet.text(box.left + 12, box.top + 22, stage_name(box.stage), size=13, bold=True)
    y = box.top + _HEAD
    for row in rows:
        sheet.rect(box.left + 8, y, box.width - 16, _ROW - 3, PAPER, radius=3)
        sheet.text(box.left + 14, y + 12, row, size=_TEXT, colour=INK)
        y += _ROW


def _draw_neighbour(sheet: Sheet, line: Bundle, boxes: Sequence[_Box]) -> None:
    start, end = boxes[line.source], boxes[line.target]
    y = start.top + start.height / 2
    path = f"M{start.right:.1f},{y:.1f} L{end.left:.1f},{y:.1f}"
    sheet.arrow(path, EDGE, tip=line.detail)
    *names, size = _parts(line)
    middle = (start.right + end.left) / 2
    for at, name in enumerate(reversed(names)):
        sheet.text(middle, y - 7 - 13 * at, name, size=_SMALL, anchor="middle", colour=EDGE)
    sheet.text(middle, y + 15, size, size=_SMALL, anchor="middle", colour=EDGE, bold=True)


def _draw_inputs(sheet: Sheet, lines: Sequence[Bundle], boxes: Sequence[_Box]) -> None:
    for line in lines:
        box = boxes[line.target]
        x = box.left + box.width / 2
        path = f"M{x:.1f},{box.bottom + 30:.1f} L{x:.1f},{box.bottom + 2:.1f}"
        sheet.arrow(path, INPUT, tip=line.detail)
        sheet.text(
            x, box.bottom + 44, line.label, size=_SMALL, anchor="middle", colour=INPUT, halo=True
        )


def _draw_arc(sheet: Sheet, arc: _Arc, boxes: Sequence[_Box]) -> None:
    start, end = boxes[arc.bundle.source], boxes[arc.bundle.target]
    x1, x2 = start.left + arc.leave * start.width, end.left + arc.arrive * end.width
    top = start.top - 16 - _LANE * arc.lane
    path = (
        f"M{x1:.1f},{start.top:.1f} L{x1:.1f},{top + 8:.1f} Q{x1:.1f},{top:.1f} {x1 + 8:.1f},{top:.1f} "
        f"L{x2 - 8:.1f},{top:.1f} Q{x2:.1f},{top:.1f} {x2:.1f},{top + 8:.1f} L{x2:.1f},{end.top - 1:.1f}"
    )
    sheet.arrow(path, PORTAL, dashed=True, tip=arc.bundle.detail)
    label = arc.bundle.label
    sheet.text(
        (x1 + x2) / 2, top - 5, label, size=_SMALL, anchor="middle", colour=PORTAL, halo=True
    )


def _legend(sheet: Sheet, graph: StageGraph, y: float) -> None:
    x = _MARGIN
    entries = [("value for the next stage", EDGE, False)]
    if graph.portals:
        entries.append(("portal", PORTAL, True))
    if graph.inputs:
        entries.append(("from the caller", INPUT, False))
    for name, colour, dashed in entries:
        sheet.arrow(f"M{x:.1f},{y:.1f} L{x + 34:.1f},{y:.1f}", colour, dashed=dashed)
        sheet.text(x + 42, y + 4, name, size=11, colour=MUTED)
        x += 42 + text_width(name, 11) + 28
