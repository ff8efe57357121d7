"""Tables of text that keep to a width, with indented cells."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import Final

WIDTH: Final = 100
_NARROW: Final = 24
"""A last column wider than that is wrapped before others are."""


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    indent: str = "  ",
    width: int = WIDTH,
) -> str:
    """Columns under headers and rules; the last one, then the widest ones are wrapped so that all fit.

    Args:
        headers: of the columns.
        rows: cells; spaces at their start are kept.
        right: headers of the columns that are aligned to the right.
        indent: stands before each line.
        width: of the lines, at most.
    """
    widths = _widths(headers, rows, width - len(indent))
    rules = ["-" * each for each in widths]
    lines = [line for row in (headers, rules, *rows) for line in _lines(row, widths)]
    to_right = [header in right for header in headers]
    return "\n".join(
        indent + "  ".join(map(_aligned, line, widths, to_right)).rstrip() for line in lines
    )


def _widths(headers: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """As wide as their cells; the last one gives way, then the widest ones, until all fit."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    excess = max(sum(widths) + 2 * (len(widths) - 1) - room, 0)
    given = min(excess, max(widths[-1] - _NARROW, 0))
    widths[-1] -= given
    for _ in range(excess - given):
        widths[widths.index(max(widths))] -= 1
    return [max(each, 1) for each in widths]


def _lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """The lines of a row whose cells are wrapped."""
    wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, wrapped))
    yield from zip(*([*cell, *[""] * (height - len(cell))] for cell in wrapped), strict=True)


def _wrapped(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    space = cell[: len(cell) - len(cell.lstrip())]
    return textwrap.wrap(
        cell.lstrip(), width, initial_indent=space, subsequent_indent=f"{space}  ",
        break_on_hyphens=False,
    )  # fmt: skip


def _aligned(cell: str, width: int, to_right: bool) -> str:
    return cell.rjust(width) if to_right else cell.ljust(width)
