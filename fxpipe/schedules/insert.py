"""Schedules with more in them: updates after the last gradients, recomputations before backwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from fxpipe.ir.action import BACKWARDS, Cell, Compute, Fused, Kind, Update, computes_of
from fxpipe.ir.schedule import Schedule


def with_updates(schedule: Schedule) -> Schedule:
    """Every stage's optimiser step, right after the last action that adds to its gradient."""

    def row(cells: tuple[Cell, ...]) -> Iterator[Cell]:
        last = {
            action.stage: position
            for position, cell in enumerate(cells)
            for action in computes_of(cell)
            if action.kind in BACKWARDS and action.kind is not Kind.BACKWARD_INPUT
        }
        for position, cell in enumerate(cells):
            yield cell
            yield from (Update(stage) for stage, at in last.items() if at == position)

    return _with_rows(schedule, row)


def with_recomputes(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """A recomputation right before each full backward or input half of some stages.

    It needs no gradient: where its rank waits for one, the recomputation fills the gap. In front of a
    fused cell it stands before the whole of it.

    Args:
        schedule: without recomputations of these stages.
        stages: whose activations are made anew instead of kept.
    """

    def row(cells: tuple[Cell, ...]) -> Iterator[Cell]:
        for cell in cells:
            for action in computes_of(cell):
                if action.stage in stages and action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
                    yield Compute(Kind.RECOMPUTE, action.stage, action.micro_batch)
            yield cell

    return _with_rows(schedule, row)


def without_cells(schedule: Schedule) -> Schedule:
    """The same with its fused cells opened: each action hands on at its own end."""

    def row(cells: tuple[Cell, ...]) -> Iterator[Cell]:
        for cell in cells:
            yield from cell.actions if isinstance(cell, Fused) else (cell,)

    return _with_rows(schedule, row)


def _with_rows(schedule: Schedule, row: Callable[[tuple[Cell, ...]], Iterator[Cell]]) -> Schedule:
    ranks = tuple(tuple(row(cells)) for cells in schedule.ranks)
    return Schedule(ranks, schedule.name, schedule.replicas)
