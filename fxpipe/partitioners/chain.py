"""The exact min-max partition of a chain: contiguous stages, the busiest as light as can be.

Bokhari's chains-on-chains problem. With c(i, j) the cost of the stage that holds items i … j-1,

    D[k][j] = min over i of max(D[k-1][i], c(i, j))

is the lightest bottleneck of k stages over the first j items, for any c; here c is the work of the
items, plus what `fxpipe.partitioners.rows.Traffic` adds. Rows of c are made as the programme goes (k·n²
steps at worst, all of a row at once). Only stages no heavier than a quickly found solution are looked
at, and only places where both what lies before and what lies after fits into the stages that are left
for it: few, where the work is spread so that the stages can be near even.

Among the optimal partitions a second programme picks one, by what a cut costs (`Chain.cut_costs`), then
by traffic, then by evenness. A bottleneck up to `SLACK` above the optimum is accepted if, and only if,
that makes the cuts cheaper.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import torch

from fxpipe.partitioners.rows import Chain, Rows

SLACK: Final = 0.01
_EXACT: Final = 1e-9
_INFINITE: Final = float("inf")
_CUT, _UNEVEN = 1e6, 1e-3  # weights beside traffic, which is at most 1 for a stage


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
    rows = Rows(chain, [0, *cuts, size])
    best = _optimum(rows, stages, bottleneck(chain, _guess(chain, list(cuts), stages)))
    exact = _nicest(rows, stages, best * (1 + _EXACT))
    if not chain.cut_costs:
        return exact
    relaxed = _nicest(rows, stages, best * (1 + SLACK))
    return relaxed if _cost(chain, relaxed) < _cost(chain, exact) else exact


def _optimum(rows: Rows, stages: int, guessed: float) -> float:
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
    rows = Rows(chain, [0, *cuts, len(chain.work)])
    return [float(row.seconds[0]) for row in rows.within(_INFINITE, len(cuts) + 1)]


def _cost(chain: Chain, cuts: Sequence[int]) -> float:
    return sum(chain.cut_costs.get(cut, 0.0) for cut in cuts)


def _lightest(rows: Rows, stages: int, limit: float) -> float:
    """The least bottleneck; infinite if there is no partition within the limit."""
    best = torch.full((stages + 1, len(rows.places)), _INFINITE, dtype=torch.float64)
    best[0, 0] = 0.0
    for row in rows.within(limit, stages):
        ends = best[row.later, row.reach]
        torch.minimum(ends, torch.maximum(best[row.before, row.start], row.seconds), out=ends)
    return float(best[stages, -1])


def _nicest(rows: Rows, stages: int, limit: float) -> tuple[int, ...]:
    """The partition within the limit with the cheapest cuts, least traffic, most even stages."""
    size = len(rows.places)
    best = torch.full((stages + 1, size), _INFINITE, dtype=torch.float64)
    came = torch.zeros((stages + 1, size), dtype=torch.long)
    best[0, 0] = 0.0
    unit = limit or 1.0
    for row in rows.within(limit, stages):
        share = row.seconds / unit
        cut = _CUT * rows.cut_costs[row.place]
        score = cut + row.traffic / unit + _UNEVEN * share * share
        score.masked_fill_(share > 1.0, _INFINITE)
        total = best[row.before, row.start] + score
        ends = best[row.later, row.reach]
        better = total < ends
        ends.copy_(torch.where(better, total, ends))
        came[row.later, row.reach].masked_fill_(better, row.place)
    found, at = [], size - 1
    for stage in range(stages, 1, -1):
        at = int(came[stage, at])
        found.append(rows.places[at])
    return tuple(reversed(found))
