"""Schedules from a building block, repeated every six slots, on a V (Qi et al., arXiv 2405.15362).

A block says, for each rank, in which slots one micro-batch's forwards (chunk 0 on the way down, chunk 1
on the way up) and input halves (chunk 1, then chunk 0) stand; weight halves fill the slots left. The
longer the block, the more micro-batches are under way at once: its length is the memory, the gaps
between its slots are time lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.starts import unit_starts
from fxpipe.schedules.v_press import Turn, press

PERIOD: Final = 6
"""Slots of a rank per micro-batch: two chunks of a forward, an input half and a weight half."""

Block: TypeAlias = Sequence[tuple[int, int, int, int]]
"""Rank → slots of micro-batch 0: forward of chunk 0, of chunk 1, input half of chunk 1, of chunk 0."""

_Row: TypeAlias = dict[Turn, list[int]]
"""What a rank does for each micro-batch in turn → its slot."""

_KINDS: Final = {
    Turn.DOWN: (Kind.FORWARD, 0),
    Turn.UP: (Kind.FORWARD, 1),
    Turn.BACK_DOWN: (Kind.BACKWARD_INPUT, 1),
    Turn.BACK_UP: (Kind.BACKWARD_INPUT, 0),
}


def v_pattern(block: Block, micro_batches: int, name: str) -> Schedule:
    """A block repeated for every micro-batch, its start and end pressed together.

    Weight halves are filled in; then what comes before the steady part and after it is moved to earlier
    free slots, as long as no rank keeps more than any did; then everything starts as soon as it can. The
    same again for the other actions with weight halves going wherever a slot is free.

    Args:
        block: slots of micro-batch 0; those of a rank must differ modulo `PERIOD`.
        micro_batches: number of micro-batches.
        name: of the schedule, whose stages are the ``2 × ranks`` chunks.

    Raises:
        ValueError: if slots of a rank are the same modulo `PERIOD`.
    """
    rows: list[_Row] = []
    for rank, slots in enumerate(block):
        if len({slot % PERIOD for slot in slots}) < len(slots):
            raise ValueError(f"rank {rank} has slots {slots}: some are the same modulo {PERIOD}")
        ends = (slot + PERIOD * micro_batches for slot in slots)
        repeated = (list(range(at, end, PERIOD)) for at, end in zip(slots, ends, strict=True))
        rows.append(dict(zip(_KINDS, repeated, strict=True)))
    for row in rows:
        row[Turn.WEIGHT] = [slot for slot, _, _ in _weights(row, in_order=True)]
    press(rows)
    rows = _squeezed(rows)
    press(rows)
    return _schedule(_squeezed(rows), name, in_order=False)


def _squeezed(rows: Sequence[_Row]) -> list[_Row]:
    """The same order, every action as soon as it can start, weight halves left out again."""
    schedule = _schedule(rows, "", in_order=True)
    ranks = len(rows)
    squeezed: list[_Row] = [{turn: [] for turn in _KINDS} for _ in rows]
    turns = {kind_and_chunk: turn for turn, kind_and_chunk in _KINDS.items()}
    for row, actions, starts in zip(
        squeezed, schedule.computes, unit_starts(schedule), strict=True
    ):
        for action, start in zip(actions, starts, strict=True):
            turn = turns.get((action.kind, action.stage // ranks))
            if turn is not None:
                row[turn].append(start)
    return squeezed


def _schedule(rows: Sequence[_Row], name: str, *, in_order: bool) -> Schedule:
    """Everything in the order of its slots, weight halves filled in."""
    ranks = []
    for rank, row in enumerate(rows):
        stages = (rank, 2 * len(rows) - 1 - rank)
        placed = [
            (slot, Compute(kind, stages[chunk], m))
            for turn, (kind, chunk) in _KINDS.items()
            for m, slot in enumerate(row[turn])
        ]
        placed += [
            (slot, Compute(Kind.BACKWARD_WEIGHT, stages[chunk], m))
            for slot, chunk, m in _weights(row, in_order=in_order)
        ]
        placed.sort(key=lambda entry: entry[0])
        ranks.append(tuple(action for _, action in placed))
    return Schedule(tuple(ranks), name)


def _weights(row: _Row, *, in_order: bool) -> Iterator[tuple[int, int, int]]:
    """Slot, chunk and micro-batch of each weight half: the first free slots after its input half.

    Of those owed, the first comes first; if not `in_order`, those of chunk 1 do.
    """
    backwards = {
        slot: (_KINDS[turn][1], m)
        for turn in (Turn.BACK_DOWN, Turn.BACK_UP)
        for m, slot in enumerate(row[turn])
    }
    forwards = {*row[Turn.DOWN], *row[Turn.UP]}
    owed: list[tuple[int, int, int]] = []
    slot, end = 0, max(backwards, default=-1)
    while slot <= end or owed:
        if slot in backwards:
            chunk, m = backwards[slot]
            heapq.heappush(owed, (slot if in_order else 1 - chunk, chunk, m))
        elif slot not in forwards and owed:
            _, chunk, m = heapq.heappop(owed)
            yield slot, chunk, m
        slot += 1
