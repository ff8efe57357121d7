"""``fxpipe graph``: draw the stages and the values between them."""

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
    Seed,
    Stages,
)
from fxpipe.cli.example import load_example
from fxpipe.cli.line import make_line
from fxpipe.cli.ranks import chunk_count, device_names, stage_count
from fxpipe.cli.show import write
from fxpipe.viz.dot import graph_dot
from fxpipe.viz.graph_svg import graph_svg
from fxpipe.viz.labels import labels

EXAMPLES = """\b
Examples:
fxpipe graph my.models:unet -i 'f32[16,3,64,64]' --devices 4 --out unet
dot -Tpdf unet.dot -o unet.pdf
"""


def graph(
    model: Model,
    inputs: Inputs = None,
    dynamic: Dynamic = None,
    devices: Devices = "2",
    stages: Stages = None,
    chunks: Chunks = None,
    cuts: Cuts = "",
    costs: Costs = "estimate",
    load: Load = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Name of the files, without .svg and .dot.")
    ] = Path("stages"),
    high: High = 2,
    seed: Seed = 0,
    evaluation: Evaluation = False,
    mode: Mode = "auto",
) -> None:
    """Draw the stages and what crosses between them, as SVG and as Graphviz DOT."""
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
    names = labels(made.capture)
    title = f"{type(example.model).__name__}, {made.plan.num_stages} stages"
    write(out.with_name(f"{out.name}.svg"), graph_svg(made.graph, made.plan, names, title=title))
    write(out.with_name(f"{out.name}.dot"), graph_dot(made.graph, made.plan, names))
    for edge in made.graph.edges:
        typer.echo(str(edge))
