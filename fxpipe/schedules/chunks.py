"""Schedules for a fixed number of chunks, on any number of stages and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

from fxpipe.ir.action import Cell, Compute, Fused, Kind, Update, computes_of
from fxpipe.ir.schedule import Schedule


def on_stages(schedule: Schedule, stages: int, micro_batches: int, chunks: int) -> Schedule:
    """The schedule with each chunk made of consecutive stages, for the first micro-batches alone.

        8 chunks on 11 stages:  0 1 | 2 3 | 4 5 | 6 | 7 | 8 | 9 | 10

    The sizes of chunks differ by one at most, the first are the larger ones; where there are fewer
    stages than chunks the last are empty. A chunk's forward becomes those of its stages, its backward
    those in reverse. Leaving out chunks at the end of the chain, or micro-batches, takes needs away and
    adds none: what was legal stays so.

    Args:
        schedule: legal, its stages are the chunks.
        stages: number of stages.
        micro_batches: number of micro-batches, at most the schedule's.
        chunks: number of chunks.
    """
    if stages == chunks and schedule.num_micro_batches <= micro_batches:
        return schedule
    parts = divide(stages, chunks)
    ranks = []
    for cells in schedule.ranks:
        row: list[Cell] = []
        for cell in cells:
            row += _opened(cell, parts, micro_batches)
        ranks.append(tuple(row))
    return Schedule(tuple(ranks), schedule.name, schedule.replicas)


def divide(stages: int, chunks: int) -> list[range]:
    """The stages of every chunk."""
    size, larger = divmod(stages, chunks)
    ends = [size * (chunk + 1) + min(chunk + 1, larger) for chunk in range(chunks)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _opened(cell: Cell, parts: Sequence[range], micro_batches: int) -> list[Cell]:
    if isinstance(cell, Update):
        return [Update(stage) for stage in parts[cell.stage]]
    actions = tuple(
        Compute(action.kind, stage, action.micro_batch)
        for action in computes_of(cell)
        if action.micro_batch < micro_batches
        for stage in _in_order(action.kind, parts[action.stage])
    )
    if isinstance(cell, Fused) and len(actions) > 1:
        return [Fused(actions)]
    return list(actions)


def _in_order(kind: Kind, stages: range) -> Sequence[int]:
    return stages if kind in (Kind.FORWARD, Kind.RECOMPUTE) else stages[::-1]
