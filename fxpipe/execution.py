"""`StepResult`, and `run`: the last arrow of the line on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxpipe.capture.signature import flatten
from fxpipe.codegen.load import load
from fxpipe.errors import CaptureError
from fxpipe.ir.action import Compute
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import Placement
from fxpipe.ir.program import RankProgram
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.ir.timeline import Timeline
from fxpipe.joined import JoinedOutputs, pass_on
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.backends.local import LocalBackend
from fxpipe.runtime.devices import open_lane, resolve_devices
from fxpipe.runtime.micro_batch import scatter
from fxpipe.runtime.runtime import Runtime


@dataclass(frozen=True)
class StepResult:
    """What a step gives.

    Attributes:
        loss: 0-d tensor, detached: the micro-batches' losses weighted by their rows; None if
            nothing but forwards ran.
        output: the model's result for the whole batch, detached; None if it was not kept.
        timeline: what every rank computed when.
    """

    loss: Tensor | None
    output: Any
    timeline: Timeline

    def __str__(self) -> str:
        loss = "none" if self.loss is None else f"{self.loss.item():.6g}"
        return f"StepResult: loss {loss}; {self.timeline}"


def run(
    model: nn.Module,
    capture: Capture,
    stages: Sequence[StageProgram],
    graph: StageGraph,
    programs: Sequence[RankProgram],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: Any = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    devices: Sequence[str | torch.device] | None = None,
    backend: Backend | None = None,
    recompute: str = "never",
    batch_norm: str = "deferred",
    seed: int = 0,
    step: int = 0,
) -> StepResult:
    """One step of a model: forward, loss and backward of a batch as the rank programs say.

    It is what `Pipeline.step` does, for a single batch: threads are started and ended with it.

    Args:
        model: the model the capture was recorded from.
        capture: from `trace`.
        stages: from `generate`.
        graph: from `link`.
        programs: from `lower`; they decide the number of micro-batches.
        args: positional inputs of the batch.
        kwargs: keyword inputs.
        target: given to `loss_fn`, cut like the batch.
        loss_fn: (output, target) → scalar; None: the output is the loss, or has one.
        devices: one per rank; None: CPU workers.
        backend: None: a worker thread per rank, ended after the step.
        recompute: as in `fxpipe.compile`.
        batch_norm: as in `fxpipe.compile`.
        seed: base of the random numbers.
        step: number of the step, part of the random numbers' keys.

    Raises:
        CaptureError: if the inputs do not match the capture.
        ScheduleError: if the batch has too few rows for the programs' micro-batches.
    """
    leaves, layout = flatten((tuple(args), dict(kwargs or {})))
    if layout != capture.signature.input:
        raise CaptureError("the arguments have another structure than those of the capture")
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    computes = [a for p in programs for a in p.actions if isinstance(a, Compute)]
    batches = scatter(capture.signature, tensors, 1 + max(a.micro_batch for a in computes))
    home = {a.stage: p.rank for p in programs for a in p.actions if isinstance(a, Compute)}
    lanes = [open_lane(device) for device in resolve_devices(devices or ["cpu"] * len(programs))]
    runner = backend or LocalBackend()
    try:
        runtime = Runtime(
            model,
            capture,
            stages,
            graph,
            Placement(tuple(home[stage] for stage in range(len(stages)))),
            lanes,
            runner,
            load,
            recompute=recompute,
            batch_norm=batch_norm,
        )
        outcome = runtime.run_step(
            runtime.prepare(programs), batches, seed=seed, step=step, target=target, loss_fn=loss_fn
        )
    finally:
        if backend is None:
            runner.close()
    pass_on(capture.signature, tensors, batches, outcome.input_grads)
    output = JoinedOutputs(capture.signature, outcome.outputs, batches).result()
    return StepResult(outcome.loss, output, outcome.timeline)
