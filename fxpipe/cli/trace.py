"""``fxpipe trace``: record a model and say what was found."""

from __future__ import annotations

from typing import Annotated

import typer
from tabulate import tabulate

from fxpipe.cli.arguments import Dynamic, Evaluation, High, Inputs, Mode, Model, Seed
from fxpipe.cli.example import load_example
from fxpipe.cli.line import record
from fxpipe.ir.capture import Capture

EXAMPLES = """\b
Examples:
fxpipe trace my.models:unet -i 'f32[4,3,64,64]'
fxpipe trace my.models:gpt -i 'i64[4,128]' --high 50257 --nodes
"""


def trace(
    model: Model,
    inputs: Inputs = None,
    dynamic: Dynamic = None,
    high: High = 2,
    seed: Seed = 0,
    evaluation: Evaluation = False,
    mode: Mode = "auto",
    verify: Annotated[
        bool, typer.Option(help="Compare the capture with the model: outputs, gradients, buffers.")
    ] = True,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node.")] = False,
) -> None:
    """Record a model and show what a pipeline would be made of."""
    example = load_example(model, inputs, high, seed, evaluation)
    capture = record(example, 1, mode, verify, dynamic)
    typer.echo(str(capture))
    typer.echo(_inputs(capture))
    for leaf in capture.leaves:
        typer.echo(f"whole: {leaf.path or 'the model'} ({leaf.module_class}): {leaf.reason}")
    if nodes:
        typer.echo(_nodes(capture))


def _inputs(capture: Capture) -> str:
    lines = []
    for leaf in capture.signature.inputs:
        free = "".join(f", dimension {dim} is free ({label})" for dim, label in leaf.dynamic)
        if leaf.placeholder is None:
            lines.append(f"input {leaf.name}: the constant {leaf.value!r}")
        elif leaf.batch_dim is None:
            lines.append(f"input {leaf.name}: {leaf.spec}, given whole to every micro-batch{free}")
        else:
            cut = f"cut along dimension {leaf.batch_dim}"
            lines.append(f"input {leaf.name}: {leaf.spec}, {cut}{free}")
    return "\n".join(lines)


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
    text: str = tabulate(rows, ("node", "module", "value", "source"), disable_numparse=True)
    return text
