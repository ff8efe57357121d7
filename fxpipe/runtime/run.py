"""`run`: a batch through the pipeline, forward and backward, under a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxpipe.ir.signature import CallSignature
from fxpipe.ir.timeline import Timeline
from fxpipe.runtime.instructions import Executable
from fxpipe.runtime.micro_batch import Joined, MicroBatches, gather, gather_input_gradient, scatter
from fxpipe.runtime.runtime import Runtime
from fxpipe.runtime.values import Gradients


@dataclass(frozen=True)
class StepResult:
    """What a step gives besides the gradients in ``.grad``.

    Attributes:
        loss: of the batch, detached; None if the step computed none.
        output: of the batch, as the model would return it, detached; None if it was not kept.
        timeline: when each rank computed what.
    """

    loss: Tensor | None
    output: Any
    timeline: Timeline


def run(
    runtime: Runtime,
    executable: Executable,
    tensors: Sequence[Tensor],
    *,
    seed: int,
    step: int,
    target: Any = None,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    weights: Sequence[float] | None = None,
    keep_output: bool = True,
) -> StepResult:
    """One training step: gradients are accumulated in ``.grad``, also those of the inputs.

    Args:
        runtime: the stages.
        executable: `Runtime.prepare` of the rank programs.
        tensors: the tensor arguments of the call, one per placeholder of the signature.
        seed: base of the random numbers.
        step: number of the step; with `seed` it decides the random numbers.
        target: cut like the batch.
        loss_fn: (output, target) → scalar; None: the output is the loss, or has one.
        weights: of the micro-batches' losses; None: their shares of the rows.
        keep_output: whether the result has the output.

    Raises:
        ValueError: if inputs or target cannot be cut, or there is no scalar loss.
        ScheduleError: if the batch has other micro-batches than the programs.
    """
    batches = scatter(runtime.signature, tensors, executable.micro_batches)
    outcome = runtime.run_step(
        executable,
        batches,
        seed=seed,
        step=step,
        target=target,
        loss_fn=loss_fn,
        weights=weights,
        keep_output=keep_output,
    )
    _accumulate(runtime.signature, tensors, batches, outcome.input_grads)
    output = None
    if keep_output:
        joined = join(runtime.signature, outcome.outputs, batches.weights)
        output = runtime.signature.output.unflatten([one.value for one in joined])
    return StepResult(outcome.loss, output, outcome.timeline)


def join(
    signature: CallSignature, outputs: Sequence[Sequence[Any]], weights: Sequence[float]
) -> list[Joined]:
    """The output leaves of the whole batch.

    Args:
        signature: which leaves are batched.
        outputs: per micro-batch, its leaves.
        weights: each micro-batch's share of the rows.
    """
    with torch.no_grad():
        return [
            gather(leaf, [_detached(leaves[at]) for leaves in outputs], weights)
            for at, leaf in enumerate(signature.outputs)
        ]


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _accumulate(
    signature: CallSignature,
    tensors: Sequence[Tensor],
    batches: MicroBatches,
    grads: Sequence[Sequence[Gradients]],
) -> None:
    """Run the inputs' gradients on into whatever the caller made them of."""
    for at, (leaf, tensor) in enumerate(zip(signature.placeholders, tensors, strict=True)):
        if tensor.requires_grad:
            pieces = [given[at] for given in grads]
            whole = gather_input_gradient(leaf, pieces, [given[at] for given in batches.inputs])
            if whole is not None:
                torch.autograd.backward((tensor,), (whole,))
