"""``fxpipe schedule search``: the fastest schedule that fits, and how much faster one could be."""

from __future__ import annotations

from typing import Any, Final

import typer

import fxpipe
from fxpipe.cli.chosen import FOLDS, Chosen, Counts, read_placement
from fxpipe.cli.rank_cost import RankCost
from fxpipe.ir.cluster import Cluster
from fxpipe.planner.search.result import SearchResult
from fxpipe.viz.tables import table

SEARCH: Final = "search"
_SHOWN: Final = 10


def search(counts: Counts, cost: RankCost, memory: int | None, seconds: float) -> Chosen:
    """The fastest schedule that was found; what was tried is printed.

    Raises:
        typer.BadParameter: if stages do not divide over the ranks.
        ScheduleError: if nothing fits into the memory.
    """
    ranks, stages = counts.ranks_or_default, counts.stages_if_told
    wanted: dict[str, Any] = {}
    if stages is not None:
        if stages % ranks:
            raise typer.BadParameter(
                f"{stages} stages do not divide over {ranks} ranks, as the search has them"
            )
        wanted["stages_per_rank"] = (stages // ranks,)
    if counts.placement is not None:
        wanted["placements"] = (_placement(counts.placement, stages or ranks, ranks),)
    result = fxpipe.search_schedule(
        [cost.of_stage(ranks, ranks)] * ranks,
        memory,
        ranks=ranks,
        micro_batches=counts.micro_batches_or_default,
        cluster=Cluster(ranks, cost.transfer),
        recompute=False,
        seconds=seconds,
        **wanted,
    )
    typer.echo(f"{_summary(result)}\n")
    stage = cost.of_stage(len(result.costs), ranks)
    return Chosen(result.schedule, (stage,) * len(result.costs), cost)


def _placement(text: str, stages: int, ranks: int) -> Any:
    """A placement as `fxpipe.search_schedule` takes it: by name for any number of stages."""
    word = text.strip().casefold()
    if word in FOLDS:
        return "fold"
    return word if word == "loop" else read_placement(text, stages, ranks)


def _summary(result: SearchResult) -> str:
    """What was tried, and how far the best is from the bound."""
    headers = ("tried", "stages", "placement", "step", "kept")
    rows = [
        (one.name, str(one.stages), one.placement, f"{one.makespan:g}", f"{one.peak:g}")
        for one in result.tried
        if one.fits
    ]
    lines = [table(headers, rows[:_SHOWN], right=headers[1:])]
    if len(rows) > _SHOWN:
        lines.append(f"  and {len(rows) - _SHOWN} more that fit")
    best = result.best_named
    lines.append("")
    if best is not None:
        lines.append(f"best with a name: {best.name}, {best.makespan:g}")
    lines.append(
        f"found: {result.makespan:g}, {result.gap:.1%} above {result.bound:g}, "
        "which no order of these stages on these ranks undercuts"
    )
    return "\n".join(lines)
