"""`StepResult`, and `run`: the last arrow of the line on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fxpipe.analysis.varying import varying_outputs
from fxpipe.believed import Believed
from fxpipe.capture.batch import batch_dimension
from fxpipe.capture.signature import flatten
from fxpipe.codegen.load import load
from fxpipe.errors import CaptureError
from fxpipe.feed import WholeBatch
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import Placement
from fxpipe.ir.program import RankProgram, homes_of
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.ir.timeline import Timeline
from fxpipe.optim.by_stage import UpdateByStage, require_no_closure
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.backends.local import LocalBackend
from fxpipe.runtime.devices import open_lane, resolve_devices
from fxpipe.runtime.instructions import micro_batches_of
from fxpipe.runtime.loss import LossTask, Weights, loss_weights
from fxpipe.runtime.micro_batch import scatter_target
from fxpipe.runtime.runtime import Runtime
from fxpipe.tangents import refuse_tangents


@dataclass(frozen=True)
class StepResult:
    """What a step gives.

    Attributes:
        loss: 0-d tensor, detached: ``Σ w_i · loss_i`` of the micro-batches, without the step's
            ``scale``; None if nothing but forwards ran.
        output: the model's result for the whole batch, detached: a tensor is joined along the
            dimension in which it follows the rows; a floating one without dimensions is ``Σ w_i ·
            value_i``; what is the same in all micro-batches is there once; all else is a list with
            the value of each micro-batch. Of ready-made micro-batches: a list with the result of each.
            None if it was not kept.
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
    weights: Weights = "samples",
    scale: float = 1.0,
    optimizer: Optimizer | None = None,
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
        weights: of the micro-batches' losses, as in `Pipeline.step`.
        scale: of the gradients, as in `Pipeline.step`.
        optimizer: as in `Pipeline.step`; it updates stages early where the programs have updates.
        devices: one per rank; None: CPU workers.
        backend: None: a worker thread per rank, ended after the step.
        recompute: as in `fxpipe.compile`.
        batch_norm: as in `fxpipe.compile`.
        seed: base of the random numbers.
        step: number of the step, part of the random numbers' keys.

    Raises:
        CaptureError: if the inputs do not match the capture, or the model does something else for the
            number of rows that a micro-batch has.
        ScheduleError: if the batch has too few rows for the programs' micro-batches, or the programs
            have updates and there is no optimizer.
        TypeError: if the optimizer's step needs a closure.
    """
    if optimizer is not None:
        require_no_closure(optimizer)
    batch = _batch(model, capture, tuple(args), dict(kwargs or {}), micro_batches_of(programs))
    rows = batch.batches.rows
    targets = scatter_target(target, rows, along=batch_dimension(capture))
    shares = loss_weights(weights, rows, batch.calls, targets)
    lanes = [open_lane(device) for device in resolve_devices(devices or ["cpu"] * len(programs))]
    runner = backend or LocalBackend()
    waits = any(tensor.requires_grad for tensor in batch.tensors)
    updates = None if optimizer is None else UpdateByStage(optimizer, waits=waits)
    try:
        runtime = Runtime(
            model,
            capture,
            stages,
            graph,
            _placement(programs, len(stages)),
            lanes,
            runner,
            load,
            recompute=recompute,
            batch_norm=batch_norm,
        )
        outcome = runtime.run_step(
            runtime.prepare(programs),
            batch.batches,
            LossTask(loss_fn, targets, shares, scale),
            seed=seed,
            step=step,
            updates=updates,
        )
    finally:
        if backend is None:
            runner.close()
    batch.pass_on(outcome.input_grads)
    if updates is not None:
        updates.finish()
    return StepResult(outcome.loss, batch.joined(outcome.outputs, shares), outcome.timeline)


def _batch(
    model: nn.Module,
    capture: Capture,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    micro_batches: int,
) -> WholeBatch:
    """The batch, cut into micro-batches that the capture holds for."""
    leaves, layout = flatten((args, kwargs))
    refuse_tangents([*leaves, *model.parameters()])
    if layout != capture.signature.input:
        raise CaptureError("the arguments have another structure than those of the capture")
    batch = WholeBatch(capture.signature, args, kwargs, micro_batches, varying_outputs(capture))
    _require_rows(capture, batch)
    return batch


def _placement(programs: Sequence[RankProgram], stages: int) -> Placement:
    """Where the stages' own tensors are: of a stage with copies, where its first micro-batch runs."""
    home = {stage: rank for (stage, _), rank in sorted(homes_of(programs).items(), reverse=True)}
    return Placement(tuple(home[stage] for stage in range(stages)))


def _require_rows(capture: Capture, batch: WholeBatch) -> None:
    """Check the micro-batches that have more rows, or fewer, than any that was recorded."""
    believed = Believed(capture.rows, capture.only_rows)
    counts = batch.batches.rows
    if capture.holds_at is None or all(rows in believed for rows in counts):
        return
    for rows, (args, kwargs) in zip(counts, batch.calls(), strict=True):
        if rows in believed:
            continue
        if not capture.holds_at(flatten((args, kwargs))[0]):
            low, high = capture.rows or (rows, rows)
            raise CaptureError(
                f"a micro-batch has {rows} rows, and the model does something else with them than with "
                f"the {low} to {high} that were recorded\n  What to do: choose another number of "
                "micro-batches, or use fxpipe.compile, which records such sizes on its own"
            )
        believed.add(rows, ())
