"""``fxpipe schedule``: draw a schedule, weigh it, write it to files; or list them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fxpipe.cli.chosen import Chosen, Counts, choose
from fxpipe.cli.grid import common_unit, print_grid
from fxpipe.cli.rank_cost import rank_cost
from fxpipe.cli.schedule_figures import figures, peaks_table, require_memory
from fxpipe.cli.schedule_list import schedule_list
from fxpipe.cli.schedule_search import SEARCH, search
from fxpipe.cli.show import write
from fxpipe.ir.serial import to_json
from fxpipe.ir.torch_order import to_torch_csv
from fxpipe.schedules.sums import sums_note
from fxpipe.viz.chrome import chrome_trace
from fxpipe.viz.timeline_svg import timeline_svg

EXAMPLES = """\b
Examples:
fxpipe schedule --list
fxpipe schedule 1f1b --ranks 4 --micro-batches 8
fxpipe schedule zb-v --ranks 4 --micro-batches 8 --svg zb-v.svg --chrome zb-v.json
fxpipe schedule 1f1b --placement fold --ranks 4 --stages 8 --transfer 0.2
fxpipe schedule mine.txt --csv mine.csv
fxpipe schedule search --ranks 8 --micro-batches 16 --memory 6 --json best.json
"""


def schedule(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Of a schedule; or a file with a line of actions per rank (.txt), torch's (.csv), a "
            "saved one (.json); or MODULE:FUNCTION of stages, ranks, micro-batches; or 'search' "
            "for the fastest that fits. Without it: a list.",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-r", min=1, help="[default: 4]", show_default=False),
    ] = None,
    micro_batches: Annotated[
        int | None,
        typer.Option("--micro-batches", "-m", min=1, help="[default: 8]", show_default=False),
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option(
            "--stages",
            "-s",
            min=1,
            help="[default: as many per rank as the schedule is made for]",
            show_default=False,
        ),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            help="What runs where: loop, fold (down the ranks and up again; v and zig-zag are the "
            "same), or the rank of every stage: 0,1,1,0. [default: the schedule's own]",
            show_default=False,
        ),
    ] = None,
    forward: Annotated[
        float, typer.Option(help="Time of the forwards of all stages of a rank.")
    ] = 1.0,
    input_half: Annotated[
        float | None,
        typer.Option(
            "--input", help="Of their gradients of inputs. [default: 1]", show_default=False
        ),
    ] = None,
    weight_half: Annotated[
        float | None,
        typer.Option(
            "--weight", help="Of their gradients of weights. [default: 1]", show_default=False
        ),
    ] = None,
    backward: Annotated[
        float | None,
        typer.Option(help="Of both. [default: their sum]", show_default=False),
    ] = None,
    transfer: Annotated[float, typer.Option(help="Of a value on its way to another rank.")] = 0.0,
    memory: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Refuse what keeps more: activations of a rank, one for each micro-batch.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="For 'search', at most.")] = 8.0,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Draw it here.", show_default=False)
    ] = None,
    chrome: Annotated[
        Path | None,
        typer.Option("--chrome", help="Write a trace for ui.perfetto.dev.", show_default=False),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option("--text", help="Write a line of actions per rank.", show_default=False),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option("--json", help="Write it for fxpipe.from_json.", show_default=False),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", help="Write it for torch.distributed.pipelining.", show_default=False
        ),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="All schedules with a name, and their papers.")
    ] = False,
    colour: Annotated[
        bool | None,
        typer.Option(
            "--color/--no-color", help="[default: on terminals that have them]", show_default=False
        ),
    ] = None,
) -> None:
    """Draw schedules, list them, search for the best.

    A schedule is drawn with its length, its bubbles, and what every rank keeps. Times are those of a
    rank for one micro-batch, and are divided among its stages: schedules with several stages per rank
    are comparable to those with one. 'fxpipe simulate' takes a model's own.
    """
    if list_all or name is None:
        typer.echo(schedule_list())
        return
    cost = rank_cost(forward, input_half, weight_half, backward, transfer)
    counts = Counts(ranks, micro_batches, stages, placement)
    if name.casefold() == SEARCH:
        chosen = search(counts, cost, memory, seconds)
    else:
        chosen = choose(name, counts, cost)
    _print(chosen, colour)
    if memory is not None:
        require_memory(chosen, memory)
    made: Sequence[tuple[Path | None, Callable[[Chosen], str]]] = (
        (svg, _svg),
        (chrome, lambda one: chrome_trace(one.timeline)),
        (text, lambda one: f"{one.schedule.to_text()}\n"),
        (json, lambda one: to_json(one.schedule)),
        (csv, lambda one: to_torch_csv(one.schedule)),
    )
    for path, form in made:
        if path is not None:
            write(path, form(chosen))


def clock(units: float) -> str:
    """Times that have no unit."""
    return f"{round(units, 6):g}"


def _svg(chosen: Chosen) -> str:
    return timeline_svg(chosen.timeline, titles=[str(chosen)], clock=clock)


def _print(chosen: Chosen, colour: bool | None) -> None:
    timeline = chosen.timeline
    typer.echo(f"{chosen}; a rank's times per micro-batch: {chosen.cost}\n")
    print_grid(timeline, common_unit(timeline), colour=colour, clock=clock)
    typer.echo(f"\n{figures(timeline, clock)}\n\n{peaks_table(chosen, clock)}")
    if note := sums_note(chosen.schedule):
        typer.echo(f"\n{note}")
