"""Timelines as grids of text, plans and predictions as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tabulate import tabulate

from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.viz.cells import Cell, cells, has_several, name_of, shortest
from fxpipe.viz.units import bytes_text, seconds_text


def grid(timeline: Timeline, unit: float | None = None, *, columns: int = 200) -> str:
    """One line per rank, one cell per `unit` seconds; ``.`` is a bubble, ``-`` goes on computing.

        F0  F1  F2  .   .   B0  F3  B1  .   B2  .   B3
        .   F0  F1  .   B0  F2  B1  F3  B2  .   B3  .
        .   .   F0  B0  F1  B1  F2  B2  F3  B3  .   .

    A cell shows what is computed at its middle. Where a rank has several stages, cells name them
    (``2F0``).

    Args:
        timeline: predicted or measured.
        unit: seconds per cell; if None, the shortest computation, or more to keep to `columns`.
        columns: the number of cells at most, if `unit` is None.
    """
    least = shortest(timeline)
    if not least:
        return ""
    rows = cells(timeline, unit or max(least, timeline.makespan / columns))
    several = has_several(timeline)
    words = [[cell_text(cell, several) for cell in row] for row in rows]
    width = max(len(word) for row in words for word in row) + 2
    return "\n".join("".join(word.ljust(width) for word in row).rstrip() for row in words)


def cell_text(cell: Cell, several: bool) -> str:
    """A computation's name, ``-`` where it goes on, ``.`` in a bubble."""
    if cell.action is None:
        return "."
    return "-" if cell.goes_on else name_of(cell.action, several)


def plan_table(
    graph: StageGraph,
    costs: Sequence[StageCost] = (),
    placement: Placement | None = None,
    starts: Sequence[str] = (),
) -> str:
    """A line per stage: what it weighs, how long it takes, what it keeps, what comes in from where.

    Args:
        graph: the stages and the values between them.
        costs: per stage, for one micro-batch; without them the columns of times are left out.
        placement: stage → rank; a column if given.
        starts: the first node of every stage but the first (`PartitionPlan.starts`).
    """
    total = sum(cost.forward + cost.backward for cost in costs)
    rows = []
    for stage in range(graph.num_stages):
        row: dict[str, str] = {"stage": str(stage)}
        if placement is not None:
            row["rank"] = str(placement.rank_of(stage))
        if starts:
            row["starts at"] = starts[stage - 1] if stage else ""
        if costs:
            row |= _cost_cells(costs[stage], total)
        row |= _crossing_cells(graph, stage)
        rows.append(row)
    return _table(rows)


def _cost_cells(cost: StageCost, total: float) -> dict[str, str]:
    seconds = cost.forward + cost.backward
    return {
        "params": bytes_text(cost.parameter_bytes),
        "forward": seconds_text(cost.forward),
        "backward": seconds_text(cost.backward),
        "share": f"{seconds / total:.1%}" if total else "",
        "kept": bytes_text(cost.saved_bytes),
    }


def _crossing_cells(graph: StageGraph, stage: int) -> dict[str, str]:
    reads = [edge for edge in graph.edges if stage in edge.consumers]
    near = sum(edge.nbytes for edge in reads if not edge.is_portal)
    portals = [edge for edge in reads if edge.is_portal]
    sources = ", ".join(map(str, sorted({edge.producer for edge in portals})))
    far = f"{bytes_text(sum(edge.nbytes for edge in portals))} from {sources}" if portals else ""
    return {"in": bytes_text(near) if near else "", "by portal": far}


def rank_table(timeline: Timeline, kept_as: Callable[[int], str] = bytes_text) -> str:
    """A line per rank: busy, idle, what it keeps for backward at its peak (written by `kept_as`)."""
    makespan = timeline.makespan
    rows = []
    for rank in range(timeline.num_ranks):
        busy = timeline.busy(rank)
        row = {
            "rank": str(rank),
            "busy": seconds_text(busy),
            "idle": seconds_text(makespan - busy),
            "idle share": f"{(makespan - busy) / makespan:.1%}" if makespan else "",
        }
        if timeline.peak_bytes:
            row["kept at peak"] = kept_as(timeline.peak_bytes[rank])
        rows.append(row)
    return _table(rows)


def _table(rows: Sequence[dict[str, str]]) -> str:
    headers = list(rows[0]) if rows else []
    left = {"starts at", "", "by portal"}
    align = ["left" if name in left else "right" for name in headers]
    body = [[row[name] for name in headers] for row in rows]
    text: str = tabulate(body, headers, tablefmt="simple", colalign=align, disable_numparse=True)
    return text
