"""Schedules as torch.distributed.pipelining writes them: CSV files, and grids of steps and ranks.

    0F0,0F1,,,0B0          a line per rank; an empty cell is a bubble

               Rank 0 Rank 1
    Step 0: 0F0           a line per step: what `_format_pipeline_order` prints
    Step 1: 0F1    1F0

torch's files may also say what fxpipe finds out by itself (transfers: ``0SEND_F1``) or has no use for
(``1UNSHARD``, ``1RESHARD``, ``1REDUCE_GRAD``): these are left out in reading.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from itertools import zip_longest
from typing import Final

from fxpipe.errors import FormatError
from fxpipe.ir.action import Cell, Kind, Update, cell_from_text, computes_of
from fxpipe.ir.schedule import Schedule

_LEFT_OUT: Final = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB])\d*")


def to_torch_csv(schedule: Schedule) -> str:
    """A CSV file that torch's ``_load_csv`` reads (format ``compute_only``).

    Raises:
        FormatError: if torch has no word for an action (a recomputation, an update) or for replicas.
    """
    text = io.StringIO()
    csv.writer(text).writerows(_words(schedule))
    return text.getvalue()


def from_torch_csv(text: str, name: str = "") -> Schedule:
    """The schedule of a CSV file that torch's ``_dump_csv`` wrote, in either of its formats.

    Raises:
        FormatError: if a cell holds no action.
    """
    return _schedule(csv.reader(io.StringIO(text)), name)


def to_torch_grid(schedule: Schedule) -> str:
    """A line per step, a column per rank, as torch's ``_format_pipeline_order`` lays them out.

    Raises:
        FormatError: as `to_torch_csv`.
    """
    words = _words(schedule)
    steps = list(zip_longest(*words, fillvalue=""))
    digits = len(str(max(0, len(steps) - 1)))
    labels = [f"Step {at:0{digits}}" for at in range(len(steps))]
    width = len("Step ") + digits
    widths = [max([width, *map(len, column)]) for column in words]
    heads = [f"Rank {rank}" for rank in range(schedule.num_ranks)]
    lines = [" " * (width + 2) + _columns(heads, widths)]
    lines += [f"{label}: {_columns(row, widths)}" for label, row in zip(labels, steps, strict=True)]
    return "\n".join(lines) + "\n"


def from_torch_grid(text: str, name: str = "") -> Schedule:
    """The schedule of a grid that torch's ``_format_pipeline_order`` printed.

    Raises:
        FormatError: if there is no line of ranks, or a cell holds no action.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    starts = [match.start() for match in re.finditer(r"Rank \d+", lines[0])] if lines else []
    if not starts:
        raise FormatError("this is no grid of torch's: its first line names no ranks")
    ends = [*starts[1:], None]
    columns = (
        [line[start:end].strip() for line in lines[1:]]
        for start, end in zip(starts, ends, strict=True)
    )
    return _schedule(columns, name)


def _columns(words: Iterable[str], widths: Iterable[int]) -> str:
    return " ".join(word.ljust(width) for word, width in zip(words, widths, strict=True))


def _words(schedule: Schedule) -> list[list[str]]:
    if schedule.replicas > 1:
        raise FormatError(f"torch runs a stage on one rank, this schedule on {schedule.replicas}")
    for rank, cells in enumerate(schedule.ranks):
        for position, cell in enumerate(cells):
            if isinstance(cell, Update) or any(
                action.kind is Kind.RECOMPUTE for action in computes_of(cell)
            ):
                raise FormatError(f"rank {rank}, position {position}: torch has no word for {cell}")
    return [[str(cell) for cell in cells] for cells in schedule.ranks]


def _schedule(rows: Iterable[Iterable[str]], name: str) -> Schedule:
    ranks: list[tuple[Cell, ...]] = []
    for rank, row in enumerate(rows):
        cells = []
        for position, word in enumerate(row):
            if word.strip() and not _LEFT_OUT.fullmatch(word.strip()):
                try:
                    cells.append(cell_from_text(word))
                except ValueError as error:
                    raise FormatError(f"rank {rank}, position {position}: {error}") from error
        ranks.append(tuple(cells))
    return Schedule(tuple(ranks), name)
