"""When everything of a schedule would start if every computation took one unit."""

from __future__ import annotations

from collections.abc import Iterator

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Cell, Fused, computes_of
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.depend import MAKES
from fxpipe.schedules.layout import Key, Layout
from fxpipe.schedules.linear import linear


def unit_starts(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Per rank, the start of every cell on a chain of stages with free links.

    A fused cell takes a unit for each of its actions, an update none.

    Raises:
        ScheduleError: if the ranks wait for one another.
    """
    layout = Layout(schedule, linear(schedule.num_stages))
    ends: dict[Key, int] = {}
    waiting: dict[Key, list[int]] = {}
    starts: list[list[int]] = [[] for _ in schedule.ranks]
    now = [0] * schedule.num_ranks
    ready = list(range(schedule.num_ranks))
    while ready:
        rank = ready.pop()
        for cell in schedule.ranks[rank][len(starts[rank]) :]:
            needed = list(_from_outside(cell, layout))
            lacking = next((key for key in needed if key not in ends), None)
            if lacking is not None:
                waiting.setdefault(lacking, []).append(rank)
                break
            start = max([now[rank], *(ends[key] for key in needed)])
            now[rank] = start + len(computes_of(cell))
            starts[rank].append(start)
            for key in _made_by(cell):
                ends[key] = now[rank]
                ready += waiting.pop(key, ())
    if any(len(done) < len(cells) for done, cells in zip(starts, schedule.ranks, strict=True)):
        raise ScheduleError(f"the ranks of schedule {schedule.name!r} wait for one another")
    return tuple(map(tuple, starts))


def _from_outside(cell: Cell, layout: Layout) -> Iterator[Key]:
    own = set(_made_by(cell))
    for action in computes_of(cell):
        yield from (key for key in layout.needs(action) if key not in own)


def _made_by(cell: Cell) -> Iterator[Key]:
    for action in computes_of(cell):
        for result in MAKES[action.kind]:
            yield result, action.stage, action.micro_batch


def place(schedule: Schedule, placement: Placement, name: str = "") -> Schedule:
    """The same actions on the ranks of `placement`, in the order in which they would start.

    The start is that of `unit_starts`, of two at once the later stage's goes first; cells are opened.
    Along every dependency it increases: the ranks cannot wait for one another, whatever the placement.

    Args:
        schedule: legal, without replicas; one rank per stage says which order is best.
        placement: stage → rank, of as many stages.
        name: of the new schedule; the old one's if empty.

    Raises:
        ScheduleError: if the placement is of another number of stages.
    """
    if len(placement.ranks) != schedule.num_stages:
        raise ScheduleError(
            f"a placement of {len(placement.ranks)} stages for a schedule of {schedule.num_stages}"
        )
    rows: list[list[tuple[int, int, Cell]]] = [[] for _ in range(placement.num_ranks)]
    for cells, starts in zip(schedule.ranks, unit_starts(schedule), strict=True):
        for cell, start in zip(cells, starts, strict=True):
            inside: tuple[Cell, ...] = computes_of(cell) or (cell,)
            for later, action in enumerate(inside):
                stage = action.actions[0].stage if isinstance(action, Fused) else action.stage
                rows[placement.rank_of(stage)].append((start + later, -stage, action))
    for row in rows:
        row.sort(key=lambda entry: entry[:2])
    ranks = tuple(tuple(cell for _, _, cell in row) for row in rows)
    return Schedule(ranks, name or schedule.name)
