"""``fxpipe simulate``: the timeline of a schedule, with or without a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from fxpipe.cli.arguments import (
    Chunks,
    Costs,
    Cuts,
    Devices,
    Dynamic,
    Evaluation,
    High,
    Inputs,
    Load,
    Mode,
    ScheduleName,
    Seed,
    Stages,
    finite,
)
from fxpipe.cli.example import load_example
from fxpipe.cli.grid import common_unit, print_grid
from fxpipe.cli.line import make_line, predict
from fxpipe.cli.ranks import chunk_count, device_names, stage_count
from fxpipe.cli.schedules import read_schedule, title
from fxpipe.cli.show import step_line, write
from fxpipe.cli.unused import refuse_unused
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.serial import to_json
from fxpipe.schedules.linear import linear
from fxpipe.viz.chrome import chrome_trace
from fxpipe.viz.text import rank_table
from fxpipe.viz.timeline_svg import timeline_svg
from fxpipe.viz.units import bytes_text

_KEPT = 1000
"""Bytes that a stage keeps without a model; what a recomputation starts from counts as nothing."""

_OF_A_MODEL: Final = frozenset(
    ("inputs", "dynamic", "cuts", "costs", "load", "high", "seed", "evaluation", "mode")
)
_WITHOUT_ONE: Final = frozenset(("forward", "backward"))
"""Options that change nothing without a model, and with one."""

EXAMPLES = """\b
Examples:
fxpipe simulate --devices 4 --chunks 8
fxpipe simulate --devices 4 --stages 8 --chunks 8 --schedule gpipe --svg step.svg
fxpipe simulate --devices 2 --schedule mine.txt
fxpipe simulate my.models:unet -i 'f32[16,3,64,64]' --devices 2 --chunks 8
"""


def simulate(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="A model, for its costs. Without one, a chain of equal stages.",
            show_default=False,
        ),
    ] = None,
    inputs: Inputs = None,
    dynamic: Dynamic = None,
    devices: Devices = "2",
    stages: Stages = None,
    chunks: Chunks = None,
    schedule: ScheduleName = "1f1b",
    forward: Annotated[
        float,
        typer.Option(
            help="Seconds of a forward of one stage; of all of a rank without --stages.",
            callback=finite,
        ),
    ] = 1.0,
    backward: Annotated[
        float,
        typer.Option(
            help="Seconds of a backward of one stage; of all of a rank without --stages.",
            callback=finite,
        ),
    ] = 2.0,
    latency: Annotated[
        float, typer.Option(help="Seconds per transfer between ranks.", callback=finite)
    ] = 0.0,
    bandwidth: Annotated[
        float, typer.Option(help="Bytes per second of a link; 0: no limit.", callback=finite)
    ] = 0.0,
    cuts: Cuts = "",
    costs: Costs = "measure",
    load: Load = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Draw the timeline here.", show_default=False)
    ] = None,
    chrome: Annotated[
        Path | None,
        typer.Option("--chrome", help="Write a trace for ui.perfetto.dev.", show_default=False),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write the timeline as JSON.", show_default=False),
    ] = None,
    high: High = 2,
    seed: Seed = 0,
    evaluation: Evaluation = False,
    mode: Mode = "auto",
) -> None:
    """Predict a step: grid, length, bubble, memory.

    'fxpipe schedule' compares schedules without a model, in units of time, and writes them to files.
    """
    if model is None:
        refuse_unused(context, _OF_A_MODEL, "is for a model, and none is named")
    else:
        refuse_unused(
            context, _WITHOUT_ONE, "is for stages without a model; a model has its own costs"
        )
    names = device_names(devices)
    order = read_schedule(schedule)
    count = stage_count(stages, len(names), order, cuts)
    if model is None:
        micro_batches = chunk_count(chunks, len(names), None, order)
        share = 1.0 if stages is not None else len(names) / count
        cost = _stage_cost(forward * share, backward * share)
        cluster = Cluster(len(names), latency, bandwidth)
        timeline = predict(linear(count), [cost] * count, order, cluster, micro_batches)
        print_grid(timeline, common_unit(timeline))
        kept_as: Callable[[int], str] = partial(
            _micro_batches_text, whole=_KEPT * count / len(names)
        )
    else:
        example = load_example(model, inputs, high, seed, evaluation)
        micro_batches = chunk_count(chunks, len(names), example.rows(), order)
        made = make_line(
            example,
            stages=count,
            may_be=len(names) if stages is None else None,
            chunks=micro_batches,
            cuts=cuts,
            load=load,
            costs=costs,
            mode=mode,
            dynamic=dynamic,
        )
        cluster = Cluster(len(names), latency, bandwidth, speeds=Cluster.local(names).speeds)
        timeline = predict(made.graph, made.stage_costs(), order, cluster, micro_batches)
        print_grid(timeline, None)
        kept_as = bytes_text
    typer.echo(f"\n{rank_table(timeline, kept_as)}\n")
    typer.echo(
        f"{title(order, schedule)}, {micro_batches} micro-batches, predicted: {step_line(timeline)}"
    )
    for path, text in ((svg, timeline_svg), (chrome, chrome_trace), (save, to_json)):
        if path is not None:
            write(path, text(timeline))


def _stage_cost(forward: float, backward: float) -> StageCost:
    """A stage without a model; half of its backward is for the weights."""
    return StageCost(forward, backward, backward / 2, _KEPT, input_bytes=1)


def _micro_batches_text(kept: int, whole: float) -> str:
    """Bytes kept, in micro-batches of `whole` bytes a rank."""
    number = kept / whole
    return f"{number:.3g} micro-batch" + ("es" if round(number, 2) != 1 else "")
