"""``fxpipe stages``: write the source of every stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fxpipe
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
    Seed,
    Stages,
)
from fxpipe.cli.example import load_example
from fxpipe.cli.line import make_line
from fxpipe.cli.ranks import chunk_count, device_names, stage_count

EXAMPLES = """\b
Examples:
fxpipe stages my.models:unet -i 'f32[16,3,64,64]' --devices 2 --out unet_stages
"""


def stages(
    model: Model,
    inputs: Inputs = None,
    dynamic: Dynamic = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the files.")] = Path("stages"),
    devices: Devices = "2",
    stages: Stages = None,
    chunks: Chunks = None,
    cuts: Cuts = "",
    costs: Costs = "estimate",
    load: Load = None,
    high: High = 2,
    seed: Seed = 0,
    evaluation: Evaluation = False,
    mode: Mode = "auto",
) -> None:
    """Write every stage as a Python file to read, compare and debug."""
    from fxpipe.codegen.files import write_stages

    ranks = len(device_names(devices))
    example = load_example(model, inputs, high, seed, evaluation)
    made = make_line(
        example,
        stages=stage_count(stages, ranks, cuts=cuts),
        chunks=chunk_count(chunks, ranks, example.rows()),
        cuts=cuts,
        load=load,
        costs=costs,
        mode=mode,
        dynamic=dynamic,
    )
    programs = fxpipe.generate(made.capture, made.plan, made.graph, example.model)
    for path in write_stages(programs, out):
        typer.echo(f"wrote {path}")
