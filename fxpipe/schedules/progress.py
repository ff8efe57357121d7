"""Whether the ranks of a schedule reach their ends, or wait for one another."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fxpipe.errors import DeadlockError
from fxpipe.ir.action import Cell, Compute, computes_of
from fxpipe.schedules.depend import MAKES, Result
from fxpipe.schedules.layout import Key, Layout, key_text, title_of


def finish(layout: Layout, given: Collection[Result] = ()) -> None:
    """Nothing, if all ranks can be advanced to their ends (in any order: the verdict has none).

    O(actions × needs): a rank that waits is looked at again when what it waits for is made.

    Args:
        layout: a schedule in which every result is made once.
        given: results that exist before it starts.

    Raises:
        DeadlockError: with the circle of ranks that wait for one another.
    """
    run = _Run(layout, given)
    run.go()
    if run.blocked:
        title = title_of(layout.schedule)
        raise DeadlockError("\n".join([f"{title} deadlocks:", *run.explain()]))


class _Run:
    def __init__(self, layout: Layout, given: Collection[Result]) -> None:
        self._layout = layout
        self._given = frozenset(given)
        self._made: set[Key] = set()
        self._positions = [0] * layout.schedule.num_ranks
        self.blocked: dict[int, Key] = {}
        """Rank → what it lacks."""
        self._waiting: dict[Key, list[int]] = {}

    def go(self) -> None:
        """Advance every rank until none can go on."""
        ready = list(range(len(self._positions)))
        while ready:
            rank = ready.pop()
            self.blocked.pop(rank, None)
            ready += self._advance(rank)

    def _advance(self, rank: int) -> list[int]:
        """Run a rank's cells as far as they go; the ranks that can go on now."""
        cells = self._layout.schedule.ranks[rank]
        woken: list[int] = []
        while self._positions[rank] < len(cells):
            cell = cells[self._positions[rank]]
            lacking = self._lacks(cell)
            if lacking is not None:
                self.blocked[rank] = lacking
                self._waiting.setdefault(lacking, []).append(rank)
                break
            for key in _made_by(cell):
                self._made.add(key)
                woken += self._waiting.pop(key, ())
            self._positions[rank] += 1
        return woken

    def _lacks(self, cell: Cell) -> Key | None:
        """What a cell waits for that does not come from the cell itself."""
        own: set[Key] = set()
        for action in computes_of(cell):
            for key in self._layout.needs(action):
                if key[0] not in self._given and key not in self._made and key not in own:
                    return key
            own.update(_makes(action))
        return None

    def explain(self) -> Iterator[str]:
        """The circle, then how many ranks wait behind it."""
        circle = self._circle()
        yield from (f"  - {self._wait(rank)}" for rank in circle)
        behind = len(self.blocked) - len(circle)
        if behind:
            yield f"  - {behind} more {'rank waits' if behind == 1 else 'ranks wait'} behind them"

    def _circle(self) -> Sequence[int]:
        """Every blocked rank waits for one other: following them ends in a circle."""
        rank, seen = min(self.blocked), list[int]()
        while rank not in seen:
            seen.append(rank)
            rank = self._layout.makers[self.blocked[rank]][0]
        circle = seen[seen.index(rank) :]
        first = circle.index(min(circle))
        return circle[first:] + circle[:first]

    def _wait(self, rank: int) -> str:
        position = self._positions[rank]
        cell, key = self._layout.schedule.ranks[rank][position], self.blocked[rank]
        other, at = self._layout.makers[key]
        return (
            f"rank {rank} waits at position {position} to run {cell} for the {key_text(key)}, "
            f"which rank {other} makes at its position {self._layout.position(other, at)}, "
            f"but it stands at {self._positions[other]}"
        )


def _made_by(cell: Cell) -> Iterator[Key]:
    for action in computes_of(cell):
        yield from _makes(action)


def _makes(action: Compute) -> Iterator[Key]:
    for result in MAKES[action.kind]:
        yield result, action.stage, action.micro_batch
