"""What stages of a chain would cost: row by row, where they may lie if none is too heavy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

import torch

_INFINITE: Final = float("inf")
_ROUNDING: Final = 1e-6
"""Share of the whole work by which a bound is widened: what rounding might cost stays in."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Cost of a value that crosses: `seconds` for every stage that receives it or its gradient.

    `made`: position of the item that makes it; `reads`: of those that read it, ascending.
    """

    made: int
    reads: tuple[int, ...]
    seconds: float
    comes_back: bool = True


@dataclass(frozen=True)
class Chain:
    """The problem.

    Attributes:
        work: seconds of every item.
        cuts: positions where it may be cut, ascending; None: between any two items.
        traffic: values that cross if a cut divides maker and reader.
        cut_costs: position → what makes a cut there undesirable (0 where none is given).
        solid: items that make a stage worth having; None: all. No stage is without one if that can be.
    """

    work: Sequence[float]
    cuts: Sequence[int] | None = None
    traffic: Sequence[Traffic] = ()
    cut_costs: dict[int, float] = field(default_factory=dict)
    solid: Sequence[bool] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The stages that start at one place.

    Attributes:
        place: its index.
        before: how many stages may lie before it.
        reach: indices of the places where such a stage may end.
        work: seconds of their items, for each place in `reach`.
        traffic: seconds of what they receive, likewise.
    """

    place: int
    before: slice
    reach: slice
    work: torch.Tensor
    traffic: torch.Tensor

    @property
    def later(self) -> slice:
        """How many stages may lie before the ends."""
        return slice(self.before.start + 1, self.before.stop + 1)

    @property
    def start(self) -> slice:
        """The place, as a column."""
        return slice(self.place, self.place + 1)

    @property
    def seconds(self) -> torch.Tensor:
        """What a stage costs, for each place in `reach`."""
        return self.work + self.traffic


class Rows:
    """The costs of the stages between places, the start and the end of the chain among them."""

    def __init__(self, chain: Chain, places: Sequence[int]) -> None:
        self.places = places
        self.demand_solid = False
        before = [0.0, *accumulate(chain.work)]
        self._work = torch.tensor([before[p] for p in places], dtype=torch.float64)
        solid = [1] * len(chain.work) if chain.solid is None else map(int, chain.solid)
        counts = [0, *accumulate(solid)]
        self._solid = torch.tensor([counts[p] for p in places])
        self._begins, self._where, self._seconds = self._traffic_changes(chain.traffic)
        self.cut_costs = torch.tensor(
            [chain.cut_costs.get(p, 0.0) for p in places], dtype=torch.float64
        )

    def within(self, limit: float, stages: int) -> Iterator[Row]:
        """The rows of a partition into stages whose work is within a limit each, in order.

        Places that no such partition has are left out: j stages before a place hold no more than j
        times the limit, and so do the stages after it.
        """
        change = torch.zeros(len(self.places) + 1, dtype=torch.float64)
        first, last, lowest = self._windows(limit, stages)
        done = 0
        ends = torch.searchsorted(self._work, self._work + limit, right=True).tolist()
        for a in range(len(self.places) - 1):
            begin, end = max(a + 1, lowest[a]), ends[a]
            if first[a] > last[a] or begin >= end:
                continue
            changed = slice(self._begins[done], self._begins[a + 1])
            change.index_add_(0, self._where[changed], self._seconds[changed])
            done = a + 1
            work = self._work[begin:end] - self._work[a]
            if self.demand_solid:
                work.masked_fill_(self._solid[begin:end] == self._solid[a], _INFINITE)
            traffic = change[:end].cumsum(0)[begin:]
            yield Row(a, slice(first[a], last[a] + 1), slice(begin, end), work, traffic)

    def _windows(self, limit: float, stages: int) -> tuple[list[int], list[int], list[int]]:
        """For each place, the fewest and most stages before it; the first place of its stage's end."""
        size, total = len(self.places), float(self._work[-1])
        if not 0 < limit < total * stages:
            return [0] * size, [stages - 1] * size, [0] * size
        room = total * _ROUNDING
        first = ((self._work - room) / limit).ceil().clamp(min=0)
        last = stages - ((total - self._work - room) / limit).ceil().clamp(min=1)
        lowest = total - (stages - 1 - first) * limit - room
        ends = torch.searchsorted(self._work, lowest)
        return first.long().tolist(), last.long().tolist(), ends.tolist()

    def _traffic_changes(
        self, traffic: Sequence[Traffic]
    ) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        """Where the row of a place rises more or less than the row before, and by how much.

        Between two places where the value is held (made or read), at h and at the next r, a stage
        [i, j) gets the value at r if h < i <= r < j, and its gradient at h if i <= h < j <= r.

        Returns:
            Where the changes of each row begin; their places; by how much, all rows one after another.
        """
        size = len(self.places)
        rows: list[list[tuple[int, float]]] = [[] for _ in range(size + 1)]

        def add(first_a: int, end_a: int, first_b: int, end_b: int, seconds: float) -> None:
            for a, sign in ((first_a, seconds), (end_a, -seconds)):
                rows[a].append((first_b, sign))
                rows[a].append((end_b, -sign))

        for value in traffic:
            holders = (value.made, *value.reads)
            after = [bisect_right(self.places, holder) for holder in holders]
            for h, r in pairwise(after):
                if h < r:
                    add(h, r, r, size, value.seconds)
                    if value.comes_back:
                        add(0, h, h, r, value.seconds)
        return (
            [0, *accumulate(map(len, rows))],
            torch.tensor([where for row in rows for where, _ in row], dtype=torch.long),
            torch.tensor([seconds for row in rows for _, seconds in row], dtype=torch.float64),
        )
