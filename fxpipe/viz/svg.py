"""A sheet to draw on that becomes self-contained SVG text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from fxpipe.viz.palette import INK, PAPER

FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif"


class Sheet:
    """Shapes in the order they are drawn; sizes in pixels, from the upper left corner."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._arrows: set[str] = set()

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        stroke: str = "none",
        radius: float = 0,
        tip: str = "",
    ) -> None:
        """A rectangle; `tip` shows when the pointer rests on it."""
        around = f' rx="{radius}"' if radius else ""
        around += f' stroke="{stroke}"' if stroke != "none" else ""
        end = f"><title>{escape(tip)}</title></rect>" if tip else "/>"
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
            f'fill="{fill}"{around}{end}'
        )

    def tiles(self, rects: Iterable[tuple[float, float, float, float]], fill: str) -> None:
        """Many rectangles (x, y, width, height) of one colour in one short shape, set apart by lines."""
        path = "".join(f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for x, y, w, h in rects)
        if path:
            self._parts.append(f'<path d="{path}" fill="{fill}" stroke="{PAPER}"/>')

    def words(
        self, placed: Iterable[tuple[float, float, str]], *, size: float, colour: str = INK
    ) -> None:
        """Many short texts (middle, baseline, text) of one size and colour."""
        inside = "".join(f'<text x="{_n(x)}" y="{_n(y)}">{escape(t)}</text>' for x, y, t in placed)
        if inside:
            self._parts.append(
                f'<g font-size="{_n(size)}" text-anchor="middle" fill="{colour}">{inside}</g>'
            )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        anchor: str = "start",
        colour: str = INK,
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """A line of text with its baseline at y; a `halo` keeps it legible over lines."""
        weight = ' font-weight="600"' if bold else ""
        around = (
            f' stroke="{PAPER}" stroke-width="4" paint-order="stroke" stroke-linejoin="round"'
            if halo
            else ""
        )
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" text-anchor="{anchor}" '
            f'fill="{colour}"{weight}{around}>{escape(text)}</text>'
        )

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1
    ) -> None:
        """A straight line."""
        self._parts.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" '
            f'stroke="{colour}" stroke-width="{width}"/>'
        )

    def arrow(self, path: str, colour: str, *, dashed: bool = False, tip: str = "") -> None:
        """A curve (SVG path data) with a head at its end."""
        self._arrows.add(colour)
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        inner = f"<title>{escape(tip)}</title>" if tip else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash} '
            f'marker-end="url(#{_marker(colour)})">{inner}</path>'
        )

    def svg(self, width: float, height: float) -> str:
        """The sheet as a document of that size."""
        heads = "".join(
            f'<marker id="{_marker(colour)}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" '
            f'fill="{colour}"/></marker>'
            for colour in sorted(self._arrows)
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{FONT}">'
        )
        paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
        return "\n".join([head, f"<defs>{heads}</defs>", paper, *self._parts, "</svg>", ""])


def _marker(colour: str) -> str:
    return f"head-{colour.lstrip('#')}"


def _n(number: float) -> str:
    """Two digits after the point, fewer if they are zero."""
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def text_width(text: str, size: float) -> float:
    """About how wide a text is, in pixels."""
    return 0.56 * size * len(text)
