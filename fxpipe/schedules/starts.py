"""When everything of a schedule would start if every computation took one unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Cell, Compute, Fused, Kind, computes_of
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.counts import require_placement
from fxpipe.schedules.depend import MAKES, Result, needs
from fxpipe.schedules.layout import title_of
from fxpipe.schedules.linear import linear
from fxpipe.schedules.numbers import require_all_numbers


def unit_starts(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Per rank, the start of every cell on a chain of stages with free links.

    A fused cell takes a unit for each of its actions, an update none.

    Raises:
        ScheduleError: if the ranks wait for one another, or a stage or micro-batch has no action.
    """
    require_all_numbers(schedule)
    rows = list(_Rows(schedule))
    ends = [-1] * (len(Result) * schedule.num_stages * schedule.num_micro_batches)
    waiting: dict[int, list[int]] = {}
    starts: list[list[int]] = [[] for _ in rows]
    now = [0] * len(rows)
    ready = list(range(len(rows)))
    while ready:
        rank = ready.pop()
        row, done, time = rows[rank], starts[rank], now[rank]
        for at in range(len(done), len(row)):
            units, needed, made = row[at]
            start = time
            for moment in needed:
                end = ends[moment]
                if end < 0:
                    waiting.setdefault(moment, []).append(rank)
                    break
                start = end if end > start else start
            else:
                time = start + units
                done.append(start)
                for moment in made:
                    ends[moment] = time
                    ready += waiting.pop(moment, ())
                continue
            break
        now[rank] = time
    if any(len(done) < len(row) for done, row in zip(starts, rows, strict=True)):
        raise ScheduleError(f"the ranks of schedule {schedule.name!r} wait for one another")
    return tuple(map(tuple, starts))


_Row: TypeAlias = list[tuple[int, Sequence[int], Sequence[int]]]
"""Per cell: units, the moments it needs of other cells, those it makes."""


class _Rows:
    """A schedule in numbers: results of a stage and a micro-batch are moments, counted from 0."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._count = schedule.num_micro_batches
        self._graph = linear(max(1, schedule.num_stages))
        self._recomputed = {
            (action.stage, action.micro_batch)
            for row in schedule.computes
            for action in row
            if action.kind is Kind.RECOMPUTE
        }
        self._known: dict[tuple[Kind, int, bool], tuple[Sequence[int], Sequence[int]]] = {}

    def __iter__(self) -> Iterator[_Row]:
        for cells in self._schedule.ranks:
            yield [self._of_cell(cell) for cell in cells]

    def _of_cell(self, cell: Cell) -> tuple[int, Sequence[int], Sequence[int]]:
        if isinstance(cell, Compute):
            return (1, *self._of_action(cell))
        both = [self._of_action(action) for action in computes_of(cell)]
        made = [moment for _, makes in both for moment in makes]
        needed = {moment for needs, _ in both for moment in needs} - set(made)
        return len(both), sorted(needed), made

    def _of_action(self, action: Compute) -> tuple[Sequence[int], Sequence[int]]:
        """The moments that an action needs, and those that it makes."""
        m = action.micro_batch
        key = action.kind, action.stage, (action.stage, m) in self._recomputed
        if key not in self._known:
            self._known[key] = self._first(*key)
        needed, made = self._known[key]
        return [moment + m for moment in needed], [moment + m for moment in made]

    def _first(
        self, kind: Kind, stage: int, recomputed: bool
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Both of them for micro-batch 0."""
        needed = needs(Compute(kind, stage, 0), self._graph, recomputed=recomputed)
        return (
            [self._moment(result, source) for result, source in needed],
            [self._moment(result, stage) for result in MAKES[kind]],
        )

    def _moment(self, result: Result, stage: int) -> int:
        return (list(Result).index(result) * self._schedule.num_stages + stage) * self._count


def place(schedule: Schedule, placement: Placement, name: str = "") -> Schedule:
    """The same actions on the ranks of `placement`, in the order in which they would start.

    The start is that of `unit_starts`, of two at once the later stage's goes first; cells are opened.
    Along every dependency it increases: the ranks cannot wait for one another, whatever the placement.

    Args:
        schedule: legal, with one copy of every stage; one rank per stage says which order is best.
        placement: stage → rank, of as many stages, for one copy of them.
        name: of the new schedule; the old one's if empty.

    Raises:
        ScheduleError: if the placement is of another number of stages, leaves out a rank, or one of
            the two has copies.
    """
    if not isinstance(placement, Placement):
        raise ScheduleError(f"no Placement, but a {type(placement).__name__}: {placement!r}")
    if schedule.replicas > 1:
        raise ScheduleError(
            f"{title_of(schedule)} has {schedule.replicas} copies of every stage, each on ranks of its "
            "own: there is no placing them all by one placement"
        )
    if len(placement.ranks) != schedule.num_stages:
        raise ScheduleError(
            f"a placement of {len(placement.ranks)} stages for a schedule of {schedule.num_stages}"
        )
    require_placement(placement, schedule.num_stages, placement.num_ranks)
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
