"""``fxpipe plan``: cut a model into stages and predict a step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    Model,
    ScheduleName,
    Seed,
    Stages,
)
from fxpipe.cli.example import load_example
from fxpipe.cli.line import make_line, predict
from fxpipe.cli.ranks import chunk_count, device_names, stage_count
from fxpipe.cli.schedules import read_schedule, title
from fxpipe.cli.show import step_line, write
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.serial import to_json
from fxpipe.schedules.registry import resolve
from fxpipe.viz.text import rank_table

EXAMPLES = """\b
Examples:
fxpipe plan my.models:unet -i 'f32[16,3,64,64]' --devices 2 --chunks 8
fxpipe plan my:model --stages 4 --cuts encoder.2,decoder.0,decoder.2 --save plan.json
fxpipe plan my:model --load plan.json --schedule gpipe
"""


def plan(
    model: Model,
    inputs: Inputs = None,
    dynamic: Dynamic = None,
    devices: Devices = "2",
    stages: Stages = None,
    chunks: Chunks = None,
    cuts: Cuts = "",
    schedule: ScheduleName = "1f1b",
    costs: Costs = "measure",
    load: Load = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write the plan to this file.", show_default=False),
    ] = None,
    high: High = 2,
    seed: Seed = 0,
    evaluation: Evaluation = False,
    mode: Mode = "auto",
) -> None:
    """Cut a model into stages: what each weighs, takes and keeps, and the step it would make.

    The inputs describe a batch; times and bytes are those of one of its micro-batches.
    """
    names = device_names(devices)
    example = load_example(model, inputs, high, seed, evaluation)
    order = read_schedule(schedule)
    count = chunk_count(chunks, len(names), example.rows(), order)
    made = make_line(
        example,
        stages=stage_count(stages, len(names), order, cuts),
        may_be=len(names) if stages is None else None,
        chunks=count,
        cuts=cuts,
        load=load,
        costs=costs,
        mode=mode,
        dynamic=dynamic,
    )
    resolved = resolve(order, made.graph.num_stages, len(names), count)
    timeline = predict(made.graph, made.stage_costs(), resolved, Cluster.local(names), count)
    typer.echo(f"{made.capture}\n{made.costs}\n")
    typer.echo(f"{made.table(resolved.placement)}\n")
    typer.echo(rank_table(timeline))
    typer.echo(
        f"\n{title(order, schedule)}, {count} micro-batches, predicted: {step_line(timeline)}"
    )
    if save is not None:
        write(save, to_json(made.plan))
