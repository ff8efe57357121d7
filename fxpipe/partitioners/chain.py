"""The exact min-max partition of a chain: contiguous stages, the busiest as light as can be.

Bokhari's chains-on-chains problem. With c(i, j) the cost of the stage that holds items i … j-1,

    D[k][j] = min over i of max(D[k-1][i], c(i, j))

is the lightest bottleneck of k stages over the first j items, for any c; here c is the work of the
items, plus what `Traffic` adds. Rows of c are made as the programme goes (k·n² steps at worst, all of
a row at once), and only stages no heavier than a quickly found solution are looked at.

Among the optimal partitions a second programme picks one, by what a cut costs (`Chain.cut_costs`), then
by traffic, then by evenness. A bottleneck up to `SLACK` above the optimum is accepted if, and only if,
that makes the cuts cheaper.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

import torch

SLACK: Final = 0.01
_EXACT: Final = 1e-9
_INFINITE: Final = float("inf")
_CUT, _UNEVEN = 1e6, 1e-3  # weights beside traffic, which is at most 1 for a stage


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


def solve(chain: Chain, stages: int) -> tuple[int, ...] | None:
    """The `stages - 1` positions where to cut; None if there are too few places.

    Deterministic: of partitions that are equal in everything, the one with the earliest cuts is taken.

    Example:
        >>> solve(Chain([1, 1, 1, 1, 1, 1, 1, 1, 1, 1]), 4)
        (2, 4, 7)
    """
    size = len(chain.work)
    cuts = range(1, size) if chain.cuts is None else chain.cuts
    if stages < 1 or len(cuts) < stages - 1 or size == 0:
        return None
    rows = _Rows(chain, [0, *cuts, size])
    best = _optimum(rows, stages, bottleneck(chain, _guess(chain, list(cuts), stages)))
    exact = _nicest(rows, stages, best * (1 + _EXACT))
    if not chain.cut_costs:
        return exact
    relaxed = _nicest(rows, stages, best * (1 + SLACK))
    return relaxed if _cost(chain, relaxed) < _cost(chain, exact) else exact


def _optimum(rows: _Rows, stages: int, guessed: float) -> float:
    """The least bottleneck, with a solid item in every stage if any partition has that."""
    for rows.demand_solid in (True, False):
        for limit in (guessed * (1 + _EXACT), _INFINITE):
            best = _lightest(rows, stages, limit)
            if best < _INFINITE:
                return best
    raise AssertionError("a chain with enough places can be cut")


def _guess(chain: Chain, cuts: list[int], stages: int) -> list[int]:
    """Some partition near equal shares of the work: its bottleneck bounds the optimum."""
    before = [0.0, *accumulate(chain.work)]
    found: list[int] = []
    start = 0
    for stage in range(1, stages):
        share = before[-1] * stage / stages
        end = len(cuts) - (stages - 1 - stage)
        place = bisect_left(cuts, share, start, end - 1, key=lambda cut: before[cut])
        if place > start and share - before[cuts[place - 1]] < before[cuts[place]] - share:
            place -= 1
        found.append(cuts[place])
        start = place + 1
    return found


def bottleneck(chain: Chain, cuts: Sequence[int]) -> float:
    """Seconds of the busiest stage under some cuts, traffic included."""
    return max(stage_seconds(chain, cuts))


def stage_seconds(chain: Chain, cuts: Sequence[int]) -> list[float]:
    """Seconds of every stage under some cuts, traffic included."""
    rows = _Rows(chain, [0, *cuts, len(chain.work)])
    return [float(work[0] + traffic[0]) for _, work, traffic in rows.stages(_INFINITE)]


def _cost(chain: Chain, cuts: Sequence[int]) -> float:
    return sum(chain.cut_costs.get(cut, 0.0) for cut in cuts)


class _Rows:
    """For each place a, the costs of the stages from it to every place b > a (infinite to others)."""

    def __init__(self, chain: Chain, places: Sequence[int]) -> None:
        self.places = places
        self.demand_solid = False
        before = [0.0, *accumulate(chain.work)]
        self._work = torch.tensor([before[p] for p in places], dtype=torch.float64)
        solid = [1] * len(chain.work) if chain.solid is None else map(int, chain.solid)
        counts = [0, *accumulate(solid)]
        self._solid = torch.tensor([counts[p] for p in places])
        self._changes = self._traffic_changes(chain.traffic)
        self.cut_costs = torch.tensor(
            [chain.cut_costs.get(p, 0.0) for p in places], dtype=torch.float64
        )

    def stages(self, limit: float) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
        """Row by row: the places b that leave the stage's work within a limit; work; traffic."""
        change = torch.zeros(len(self.places) + 1, dtype=torch.float64)
        for a in range(len(self.places) - 1):
            change.index_add_(0, *self._changes[a])
            end = int(torch.searchsorted(self._work, self._work[a] + limit, right=True))
            reach = slice(a + 1, end)
            work = self._work[reach] - self._work[a]
            if self.demand_solid:
                work.masked_fill_(self._solid[reach] == self._solid[a], _INFINITE)
            yield reach, work, change[:end].cumsum(0)[a + 1 :]

    def _traffic_changes(
        self, traffic: Sequence[Traffic]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Place a → where the row of a rises more or less than the row before, and by how much.

        Between two places where the value is held (made or read), at h and at the next r, a stage
        [i, j) gets the value at r if h < i <= r < j, and its gradient at h if i <= h < j <= r.
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
        return [
            (
                torch.tensor([where for where, _ in row], dtype=torch.long),
                torch.tensor([seconds for _, seconds in row], dtype=torch.float64),
            )
            for row in rows
        ]


def _lightest(rows: _Rows, stages: int, limit: float) -> float:
    """The least bottleneck; infinite if there is no partition within the limit."""
    size = len(rows.places)
    best = torch.full((stages + 1, size), _INFINITE, dtype=torch.float64)
    best[0, 0] = 0.0
    for a, (reach, work, traffic) in enumerate(rows.stages(limit)):
        ends = best[1:, reach]
        torch.minimum(ends, torch.maximum(best[:-1, a : a + 1], work + traffic), out=ends)
    return float(best[stages, -1])


def _nicest(rows: _Rows, stages: int, limit: float) -> tuple[int, ...]:
    """The partition within the limit with the cheapest cuts, least traffic, most even stages."""
    size = len(rows.places)
    best = torch.full((stages + 1, size), _INFINITE, dtype=torch.float64)
    came = torch.zeros((stages + 1, size), dtype=torch.long)
    best[0, 0] = 0.0
    unit = limit or 1.0
    for a, (reach, work, traffic) in enumerate(rows.stages(limit)):
        share = (work + traffic) / unit
        score = _CUT * rows.cut_costs[a] + traffic / unit + _UNEVEN * share * share
        score.masked_fill_(share > 1.0, _INFINITE)
        total = best[:-1, a : a + 1] + score
        better = total < best[1:, reach]
        best[1:, reach] = torch.where(better, total, best[1:, reach])
        came[1:, reach].masked_fill_(better, a)
    found, at = [], size - 1
    for stage in range(stages, 1, -1):
        at = int(came[stage, at])
        found.append(rows.places[at])
    return tuple(reversed(found))
