"""The arguments that several subcommands share."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FACTORY",
        help="A function (or class) that returns the model, or (model, args) or "
        "(model, args, kwargs); or the model itself. The current folder is importable.",
        show_default=False,
    ),
]

Inputs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]TYPE[SHAPE]",
        help="A batch of an input, as in 'f32[8,1,64,64]'; repeat it for more inputs; "
        "'mask=bool[8,16]' is a keyword. Types: f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool. "
        "Not needed if the factory returns args.",
        show_default=False,
    ),
]

Dynamic: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--dynamic",
        metavar="NAME:DIM=LABEL",
        help="A dimension of an input that varies from call to call, as in 'ids:1=length'; repeat "
        "it for more; those of one label vary together. '16*width': sizes are multiples of 16.",
        show_default=False,
    ),
]

High: TypeAlias = Annotated[
    int, typer.Option(help="Integer inputs are drawn below this: the size of a vocabulary.")
]

Evaluation: TypeAlias = Annotated[
    bool, typer.Option("--eval", help="Set the model to evaluation mode first.")
]

Seed: TypeAlias = Annotated[
    int, typer.Option(help="Of torch's generator, before the model and its inputs are made.")
]

ModeName: TypeAlias = Literal["auto", "real", "fake"]
CostsName: TypeAlias = Literal["measure", "estimate"]

Mode: TypeAlias = Annotated[
    ModeName, typer.Option(help="Record a run on data, one without data, or what suits the model.")
]

Devices: TypeAlias = Annotated[
    str,
    typer.Option(
        "--devices", "-d", help="Number of CPU workers, or one device per rank: 'cuda:0,cuda:1'."
    ),
]

Stages: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--stages",
        "-s",
        help="Number of stages; the schedule says which rank runs which (most: rank s % ranks runs "
        "stage s, V-schedules go down the ranks and up again). [default: as many as the cuts make, "
        "else as the schedule has or is made for]",
        show_default=False,
    ),
]

Chunks: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--chunks",
        "-c",
        help="Micro-batches per batch. [default: four per rank, or as a schedule from a file has]",
        show_default=False,
    ),
]

Cuts: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Where stages start, with commas: module paths, 'path@n' for its call n, or nodes. "
        "[default: balanced by cost]",
        show_default=False,
    ),
]

Load: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--load",
        help="Take the plan of this file.",
        dir_okay=False,
        exists=True,
        show_default=False,
    ),
]

ScheduleName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--schedule",
        help="A name ('fxpipe schedule --list' has them all), a file with a line of actions per rank "
        "('0F0 0B0'), torch's (.csv), a saved one (.json), or MODULE:FUNCTION of stages, ranks, "
        "micro-batches.",
    ),
]

Costs: TypeAlias = Annotated[
    CostsName, typer.Option(help="Measure the nodes, or estimate them by counting.")
]


def finite(number: float) -> float:
    """A number of seconds, or of bytes per second, as it is.

    Raises:
        typer.BadParameter: if it is negative, infinite or not a number.
    """
    if not 0.0 <= number < math.inf:
        raise typer.BadParameter(f"expected a finite number, not below 0, got {number:g}")
    return number
