"""Timelines as grids for a terminal: labelled, wrapped to its width, with or without colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from fxpipe.ir.action import Compute, Update
from fxpipe.ir.timeline import Timeline
from fxpipe.viz.cells import (
    Cell,
    Work,
    cells,
    computations,
    has_several,
    name_of,
    shortest,
    work_of,
)
from fxpipe.viz.palette import KIND_NAME, UPDATE_NAME, code_of
from fxpipe.viz.text import cell_text

_FEWEST = 4
"""Columns of cells that a line must have room for."""

_EVERY = 5
"""Columns from one number of the clock to the next."""


def terminal_grid(
    timeline: Timeline,
    unit: float,
    *,
    width: int = 100,
    colour: bool = False,
    clock: Callable[[float], str] = "{:g}".format,
    blocks: int = 12,
) -> str:
    """One line per rank, one cell per `unit` seconds, in blocks that are as wide as the terminal.

        time    0              5              10
        rank 0  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
        rank 1  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .
        rank 2  .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

    ``.`` is a bubble, ``-`` goes on computing; with colours, both are their background.

    Args:
        timeline: predicted or measured.
        unit: seconds per cell.
        width: characters per line.
        colour: whether to use ANSI colours.
        clock: writes the time at the head of a column.
        blocks: how many to print at most.
    """
    rows, several = cells(timeline, unit), has_several(timeline)
    words = [[cell_text(cell, several) for cell in row] for row in rows]
    size = 1 + max((len(word) for row in words for word in row), default=1)
    count = max(map(len, rows), default=0)
    margin = _margin(timeline)
    room = _room(width - margin, size)
    if room < _FEWEST:
        least = margin + _FEWEST * size
        return f"(a line of {width} characters has no room for the grid: it takes {least} at least)"
    starts = range(0, count, room)
    drawn = []
    for start in starts[:blocks]:
        part = range(start, min(start + room, count))
        lines = ["time".ljust(margin) + _times(part, size, unit, clock)]
        for rank, row in enumerate(rows):
            line = "".join(_drawn(row, at, size, several, colour) for at in part)
            lines.append(f"rank {rank}".ljust(margin) + (line if colour else line.rstrip()))
        drawn.append("\n".join(lines))
    if len(starts) > blocks:
        left = count - blocks * room
        drawn.append(f"({left} more columns: a wider terminal shows more of them, a drawing all)")
    return "\n\n".join(drawn)


def fitting_unit(timeline: Timeline, width: int) -> float:
    """Seconds per cell with which a grid is one block, if computations are not longer."""
    several = has_several(timeline)
    names = [name_of(work_of(span), several) for span in computations(timeline)]
    room = _room(width - _margin(timeline), 1 + max(map(len, names), default=1))
    return max(shortest(timeline), timeline.makespan / max(room, _FEWEST))


def _margin(timeline: Timeline) -> int:
    return len(f"rank {max(0, timeline.num_ranks - 1)}  ")


def _room(width: int, size: int) -> int:
    """Columns of `size` characters."""
    room = width // size
    return room - room % _EVERY if room > _EVERY else room


def _times(part: Sequence[int], size: int, unit: float, clock: Callable[[float], str]) -> str:
    """The time at the head of every few columns."""
    heads = [(at, clock(round(at * unit, 9))) for at in part]
    needed = max(-(-(len(text) + 1) // size) for _, text in heads)
    every = max(_EVERY, -(-needed // _EVERY) * _EVERY)
    return "".join(text.ljust(size * every) for _, text in heads[::every]).rstrip()


def _drawn(row: Sequence[Cell], at: int, size: int, several: bool, colour: bool) -> str:
    """A cell with the space after it."""
    cell = row[at]
    if not colour:
        return cell_text(cell, several).ljust(size)
    if cell.action is None:
        return f"\x1b[2m{'·'.ljust(size)}\x1b[22m"
    paint = _paint(cell.action, cell.nth)
    text = "" if cell.goes_on else cell_text(cell, several)
    joined = at + 1 < len(row) and row[at + 1].goes_on
    return f"{paint}{text.ljust(size if joined else size - 1)}\x1b[0m{'' if joined else ' '}"


def legend(timeline: Timeline, *, colour: bool = False) -> str:
    """What the letters of a grid mean, in one line."""
    actions = [work_of(span) for span in computations(timeline)]
    kinds = {action.kind: action for action in actions if isinstance(action, Compute)}
    entries: list[tuple[str, Work, str]] = [
        (str(kind), kinds[kind], name) for kind, name in KIND_NAME.items() if kind in kinds
    ]
    updates = (action for action in actions if isinstance(action, Update))
    entries += [("U", action, UPDATE_NAME) for action in islice(updates, 1)]
    return "  ".join(f"{_letter(text, one, colour)} {name}" for text, one, name in entries)


def _letter(letter: str, action: Work, colour: bool) -> str:
    return f"{_paint(action, 0)} {letter} \x1b[0m" if colour else letter


def _paint(action: Work, nth: int) -> str:
    return f"\x1b[38;5;16;48;5;{code_of(action, nth)}m"
