"""``fxpipe trace``: record a model and say what was found."""

from __future__ import annotations

from typing import Annotated

import typer

import fxpipe
from fxpipe.cli.arguments import (
    Costs,
    CostsName,
    Cuts,
    Dynamic,
    Evaluation,
    High,
    Inputs,
    Mode,
    Model,
    Seed,
)
from fxpipe.cli.example import Example, load_example
from fxpipe.cli.line import record, split_names
from fxpipe.ir.capture import Capture
from fxpipe.ir.cost import CostProfile
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.serial import to_json
from fxpipe.viz.findings import findings_text
from fxpipe.viz.tables import table

EXAMPLES = """\b
Examples:
fxpipe trace my.models:unet -i 'f32[4,3,64,64]'
fxpipe trace my.models:unet -i 'f32[4,3,64,64]' --stages 4
fxpipe trace my.models:gpt -i 'i64[4,128]' --high 50257 --json
"""


def trace(
    model: Model,
    inputs: Inputs = None,
    dynamic: Dynamic = None,
    stages: Annotated[
        int | None,
        typer.Option(
            "--stages",
            "-s",
            min=1,
            help="Show what becomes of every module call if the model is cut into so many stages.",
            show_default=False,
        ),
    ] = None,
    cuts: Cuts = "",
    costs: Costs = "estimate",
    depth: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Levels of modules to list. [default: 3; with stages, down to the called ones]",
            show_default=False,
        ),
    ] = None,
    high: High = 2,
    seed: Seed = 0,
    evaluation: Evaluation = False,
    mode: Mode = "auto",
    verify: Annotated[
        bool, typer.Option(help="Compare the capture with the model: outputs, gradients, buffers.")
    ] = True,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Record a model and show what a pipeline would be made of.

    Inputs, module calls, modules that stay whole and why, decisions on data, values that cross, and the
    largest unit that no cut can divide.
    """
    example = load_example(model, inputs, high, seed, evaluation)
    capture = record(example, 1, mode, verify, dynamic)
    priced = _priced(example, capture, costs)
    found = fxpipe.examine(capture, _plan(capture, priced, stages, cuts), priced)
    if as_json:
        typer.echo(to_json(found), nl=False)
        return
    typer.echo(findings_text(found, depth=depth))
    if nodes:
        typer.echo(f"\n{_nodes(capture)}")


def _priced(example: Example, capture: Capture, costs: CostsName) -> CostProfile:
    if costs == "estimate":
        return fxpipe.estimate(capture, example.model)
    return fxpipe.profile(capture, example.model, *example.micro_batch(1))


def _plan(
    capture: Capture, costs: CostProfile, stages: int | None, cuts: str
) -> PartitionPlan | None:
    names = split_names(cuts)
    if stages is None and names is None:
        return None
    count = len(names or ()) + 1 if stages is None else stages
    return fxpipe.partition(capture, costs, count, cuts=names)


def _nodes(capture: Capture) -> str:
    rows = [
        (
            node.name,
            node.meta.get("path", ""),
            str(capture.spec(node.name)),
            node.meta.get("source", ""),
        )
        for node in capture.body
    ]
    return table(("node", "module", "value", "source"), rows, width=160)
