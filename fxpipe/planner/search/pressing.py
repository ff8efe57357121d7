"""One micro-batch's starts repeated for all, then everything into the first gap with room for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fxpipe.planner.search.periodic import Starts
from fxpipe.planner.search.problem import Orders, Problem
from fxpipe.planner.search.ways import Ways

_CLOSE: Final = 1e-9


@dataclass(slots=True)
class _Placed:
    """An action on its rank: its time, and the bytes kept during and after it."""

    start: float
    end: float
    number: int
    during: float
    after: float


def pressed(problem: Problem, ways: Ways, starts: Starts, period: float) -> Orders:
    """The order of the repeated starts, its beginning and its end pressed together.

    Actions are taken in the order in which they would start. Each goes into the first gap of its rank
    after all that it waits for, before others that have their place already if these still have room
    for what it keeps. So first micro-batches come as early as memory allows, last ones go as fast as
    they can, and where the period leaves gaps they close. No action ends later than it would, and no
    rank keeps more than its limit if none does when all are repeated.

    O(actions × actions moved by one).

    Args:
        problem: stages on ranks, without replicas.
        ways: what the actions of a micro-batch wait for.
        starts: of the first micro-batch.
        period: seconds from one micro-batch to the next.
    """
    repeated = sorted(
        (start + m * period, at, number, m)
        for at, (number, start) in enumerate(starts.items())
        for m in range(problem.micro_batches)
    )
    rows: list[list[_Placed]] = [[] for _ in problem.ranks]
    ends: dict[int, float] = {}
    for _, _, first, m in repeated:
        waits = [ends[source + m] + hop for source, hop in ways.before[first]]
        if m:
            waits.append(ends[first + m - 1])
        rank = problem.rank_of(first)
        ends[first + m] = _insert(
            problem, rows[rank], first + m, max(waits, default=0.0), problem.limits[rank]
        )
    return [[one.number for one in row] for row in rows]


def _insert(problem: Problem, row: list[_Placed], number: int, ready: float, limit: float) -> float:
    """Put an action into the first gap that has room for it; its end."""
    tables = problem.scorer.tables
    seconds, more, less = tables.seconds[number], tables.more[number], tables.less[number]
    at = len(row)
    while at and row[at - 1].end > ready + _CLOSE:
        if more and row[at - 1].during + more > limit:
            break
        at -= 1
    start = max(ready, row[at - 1].end if at else 0.0)
    while at < len(row) and start + seconds > row[at].start + _CLOSE:
        at += 1
        start = max(ready, row[at - 1].end)
    before = row[at - 1].after if at else 0.0
    for later in row[at:]:
        later.during += more - less
        later.after += more - less
    placed = _Placed(start, start + seconds, number, before + more, before + more - less)
    row.insert(at, placed)
    return placed.end
