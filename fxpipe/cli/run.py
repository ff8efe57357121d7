"""``fxpipe run``: some steps of a pipeline, measured beside predicted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fxpipe
from fxpipe.cli.arguments import (
    Chunks,
    Cuts,
    Devices,
    Dynamic,
    High,
    Inputs,
    Load,
    Mode,
    Model,
    ScheduleName,
    Seed,
    Stages,
)
from fxpipe.cli.example import Example, load_example
from fxpipe.cli.inputs import read_dynamic
from fxpipe.cli.line import split_names
from fxpipe.cli.ranks import chunk_count, device_names, stage_count
from fxpipe.cli.schedules import read_schedule, title
from fxpipe.cli.show import write
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.serial import from_json
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.sums import sums_note
from fxpipe.simulator.compare import compare
from fxpipe.viz.chrome import chrome_trace
from fxpipe.viz.overlay_svg import overlay_svg
from fxpipe.viz.units import seconds_text

if TYPE_CHECKING:
    from torch import Tensor


EXAMPLES = """\b
Examples:
fxpipe run my.models:unet -i 'f32[16,3,64,64]' --devices 2 --chunks 8
fxpipe run my.models:unet -i 'f32[16,3,64,64]' --devices 2 --timeline --out unet_run
"""


def run(
    model: Model,
    inputs: Inputs = None,
    dynamic: Dynamic = None,
    steps: Annotated[int, typer.Option("--steps", "-n", min=1, help="Number of steps.")] = 5,
    devices: Devices = "2",
    stages: Stages = None,
    chunks: Chunks = None,
    cuts: Cuts = "",
    load: Load = None,
    schedule: ScheduleName = "1f1b",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Draw as --timeline does, into this folder.",
            file_okay=False,
            show_default=False,
        ),
    ] = None,
    timeline: Annotated[
        bool,
        typer.Option(
            "--timeline",
            help="Draw the fastest step, each rank's measured row over its predicted one: timeline.svg "
            "and timeline.json (for ui.perfetto.dev), into --out or the current folder.",
        ),
    ] = False,
    high: High = 2,
    seed: Seed = 0,
    mode: Mode = "auto",
) -> None:
    """Run steps, and hold the fastest against its prediction.

    The loss is the mean square of all floating outputs; nothing is optimised.
    """
    names = device_names(devices)
    example = load_example(model, inputs, high, seed, evaluation=False)
    order = read_schedule(schedule)
    count = chunk_count(chunks, len(names), example.rows(), order)
    num_stages = None if stages is None else stage_count(stages, len(names))
    if num_stages is not None and num_stages % len(names):
        raise typer.BadParameter(f"{num_stages} stages do not divide over {len(names)} devices")
    saved = from_json(load.read_text(encoding="utf-8"), PartitionPlan) if load is not None else None
    with fxpipe.compile(
        example.model,
        devices=names,
        chunks=count,
        example_args=example.args,
        example_kwargs=example.kwargs,
        cuts=saved or split_names(cuts),
        stages_per_rank=None if num_stages is None else num_stages // len(names),
        schedule=order,
        capture=mode,
        dynamic=read_dynamic(dynamic),
    ) as pipe:
        measured = min(_timelines(pipe, example, steps), key=lambda made: made.makespan)
        predicted = pipe.predict(count)
        beside = compare(measured, predicted, pipe.stage_graph, pipe.schedule)
        note = sums_note(pipe.schedule)
    of = f"the fastest of {steps} steps" if steps > 1 else "one step"
    typer.echo(f"\n{title(order, schedule)}, {count} micro-batches, {of}:\n{beside}")
    if note:
        typer.echo(f"\n{note}")
    if timeline or out is not None:
        folder = out or Path()
        write(folder / "timeline.svg", overlay_svg(measured, predicted))
        write(folder / "timeline.json", chrome_trace(measured, predicted))


def _timelines(pipe: fxpipe.Pipeline, example: Example, steps: int) -> Iterator[Timeline]:
    """Make steps on the example and tell how each one went."""
    import torch

    learns = pipe.schedule.has_backward
    for step in range(steps):
        batch = (example.args, example.kwargs)
        with torch.set_grad_enabled(learns):
            result = pipe.step(inputs=batch, loss_fn=_loss, keep_output=False)
        pipe.zero_grad()
        assert result.loss is not None  # keep_output=False drops the output, not the loss
        took = seconds_text(result.timeline.makespan)
        typer.echo(f"step {step}: loss {float(result.loss):.6g}, {took}")
        yield result.timeline


def _loss(output: Any, target: Any) -> Tensor:
    """The sum of the mean squares of all floating tensors of a result."""
    import torch

    from fxpipe.capture.signature import flatten

    leaves = [leaf for leaf in flatten(output)[0] if isinstance(leaf, torch.Tensor)]
    squares = [leaf.float().pow(2).mean() for leaf in leaves if leaf.is_floating_point()]
    if not squares:
        raise fxpipe.ExecutionError(
            "the model has no floating output: there is nothing to learn from"
        )
    return torch.stack(squares).sum()
