"""The start and the end of a repeated pattern pressed together, without more being kept."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from enum import IntEnum
from typing import TypeAlias


class Turn(IntEnum):
    """What a rank does for each micro-batch, in the order in which it can."""

    DOWN = 0
    UP = 1
    BACK_DOWN = 2
    BACK_UP = 3
    WEIGHT = 4
    """Either weight half: they are run in the order of the backwards."""


Rows: TypeAlias = Sequence[MutableMapping[Turn, list[int]]]
"""Rank → turn → slot of each micro-batch."""


def press(rows: Rows) -> None:
    """Move actions to earlier free slots where no rank then keeps more than the fullest did.

    What is kept is counted in chunks, from a forward to a weight half. If the rows have weight halves,
    those stand where they are; if not, a weight half takes every slot that is free once it is owed, and
    only the end is pressed. The steady part, from the first micro-batch's return to rank 0 to the last
    one's entry, stays.
    """
    filled = Turn.WEIGHT not in rows[0]
    kept = [_Kept(row) for row in rows]
    limit = max(one.peak for one in kept)
    order = sorted(
        (slot, rank, turn, m)
        for rank, row in enumerate(rows)
        for turn, slots in row.items()
        for m, slot in enumerate(slots)
    )
    last = len(rows[0][Turn.DOWN]) - 1
    steady = ended = False
    for slot, rank, turn, m in order:
        steady = steady or (turn is Turn.BACK_UP and rank == 0)
        if steady and not ended:
            ended = turn is Turn.DOWN and m == last
        elif ended or not filled:
            start = _earliest(rows, rank, turn, m)
            moved = kept[rank].earliest(turn, slot, start, limit)
            rows[rank][turn][m] = moved


def _earliest(rows: Rows, rank: int, turn: Turn, m: int) -> int:
    """The first slot after everything that the action needs."""
    row = rows[rank]
    after = [row[turn][m - 1]] if m else []
    if turn is Turn.WEIGHT:
        after.append(sorted([*row[Turn.BACK_DOWN], *row[Turn.BACK_UP]])[m])
    elif turn:
        after.append(row[Turn(turn - 1)][m])
    source = rank - 1 if turn in (Turn.DOWN, Turn.BACK_DOWN) else rank + 1
    if turn is not Turn.WEIGHT and 0 <= source < len(rows):
        after.append(rows[source][turn][m])
    return max(after, default=-1) + 1


class _Kept:
    """What a rank keeps from slot to slot."""

    def __init__(self, row: Mapping[Turn, Sequence[int]]) -> None:
        self._filled = Turn.WEIGHT not in row
        end = 1 + max(slots[-1] for slots in row.values())
        self._turns: list[Turn | None] = [None] * end
        for turn, slots in row.items():
            for slot in slots:
                self._turns[slot] = turn
        self._states = [(0, 0)] * (end + 1)
        """Before each slot: chunks kept, weight halves owed."""
        for slot, here in enumerate(self._turns):
            self._states[slot + 1] = self._next(self._states[slot], here)

    @property
    def peak(self) -> int:
        """The most that is kept."""
        return max(kept for kept, _ in self._states)

    def _next(self, state: tuple[int, int], turn: Turn | None) -> tuple[int, int]:
        kept, owed = state
        if turn is None:
            used = 1 if self._filled and owed else 0
            return kept - used, owed - used
        if turn in (Turn.DOWN, Turn.UP):
            return kept + 1, owed
        return (kept - 1, owed) if turn is Turn.WEIGHT else (kept, owed + 1)

    def earliest(self, turn: Turn, slot: int, start: int, limit: int) -> int:
        """Move an action to the first slot from `start` on that is free and keeps to the limit."""
        for earlier in range(start, slot):
            if self._turns[earlier] is None:
                states = self._moved(turn, slot, earlier, limit)
                if states is not None:
                    self._turns[slot], self._turns[earlier] = None, turn
                    self._states[earlier + 1 : earlier + 1 + len(states)] = states
                    return earlier
        return slot

    def _moved(
        self, turn: Turn, slot: int, earlier: int, limit: int
    ) -> list[tuple[int, int]] | None:
        """The states that differ if the action moves; None if too much is kept in one."""
        state = self._states[earlier]
        states = []
        for at in range(earlier, len(self._turns)):
            here = turn if at == earlier else None if at == slot else self._turns[at]
            state = self._next(state, here)
            if state[0] > limit:
                return None
            if at >= slot and state == self._states[at + 1]:
                break
            states.append(state)
        return states
