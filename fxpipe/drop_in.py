"""One differentiable call: the pipeline's forward now, its backward when the loss is differentiated.

    inputs ──┐
             ├─► _PipelinedCall ──► outputs ──► the user's loss
    anchor ──┘        │
       ▲              └ backward: all micro-batches' backwards; parameters' gradients go to .grad
       │
    _ParameterGuard ◄── parameters        (carries no gradient: it only notices who is asked for)

Parameter gradients are accumulated by the stages themselves, so they do not flow through this graph.
`torch.autograd.grad(loss, parameters)` would therefore find nothing: the guard sees it and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fxpipe.errors import ExecutionError


class Call(Protocol):
    """All forwards of one batch, with what their backwards need."""

    def backward(
        self, grads: Sequence[Tensor | None], *, inputs_only: bool
    ) -> Sequence[Tensor | None]:
        """Run all backwards; the gradients of the inputs that were given as differentiable."""
        ...


class CallRunner(Protocol):
    """Runs the forwards: the call, and the leaves of its result that can be differentiated."""

    def __call__(self) -> tuple[Call, list[Tensor]]:
        """Run them."""
        ...


def differentiable_call(
    run: CallRunner, inputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The differentiable output tensors of a pipelined call, with a backward that runs the pipeline.

    Args:
        run: runs the forwards.
        inputs: the caller's tensors that require grad; their gradients flow on.
        parameters: the parameters whose gradients the stages accumulate.
    """
    phony = torch.empty(0, requires_grad=True)
    # A hook on a parameter would be called with None by the guard: leave such parameters out.
    plain = [p for p in parameters if p.requires_grad and not _has_hooks(p)]
    anchor = _ParameterGuard.apply(phony, *plain)  # type: ignore[no-untyped-call]
    outputs: tuple[Tensor, ...] = _PipelinedCall.apply(  # type: ignore[no-untyped-call]
        run, phony, anchor, *inputs
    )
    return outputs


class _ParameterGuard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, phony: Tensor, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        ctx.set_materialize_grads(False)
        return phony.new_empty(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[None, ...]:
        nothing: tuple[None, ...] = (None,) * (1 + ctx.count)
        return nothing


class _PipelinedCall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: CallRunner, phony: Tensor, anchor: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.call, outputs = run()
        ctx.phony = phony
        ctx.guard = anchor.grad_fn
        ctx.count = len(inputs)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs_only = not _will_run(_leaf_node(ctx.phony))
        _refuse(ctx, inputs_only)
        call: Call = ctx.call
        ctx.call = None
        with torch.no_grad():
            input_grads = call.backward(grads, inputs_only=inputs_only)
        return (None, None, None, *input_grads)


def _refuse(ctx: Any, inputs_only: bool) -> None:
    """Raise for what cannot be computed, rather than compute something else."""
    if torch.is_grad_enabled():
        raise ExecutionError(
            "create_graph=True: the backward of a pipeline cannot be differentiated again. "
            "Call the model itself (pipe.module) for double backward."
        )
    if inputs_only and _will_run(ctx.guard):
        raise ExecutionError(
            "the gradients of a pipeline's parameters are accumulated in .grad by its stages: "
            "torch.autograd.grad(loss, parameters) and backward(inputs=parameters) are not "
            "supported. Call loss.backward() and read parameter.grad."
        )
    if ctx.call is None:
        raise ExecutionError(
            "this call's backward has already run and what it needed is freed: call the "
            "pipeline again (retain_graph=True cannot keep it)."
        )


def _leaf_node(leaf: Tensor) -> Any:
    return torch.autograd.graph.get_gradient_edge(leaf).node


def _will_run(node: Any) -> bool:
    """Whether the running backward reaches a node: all of them in `backward()`, else chosen ones."""
    return bool(torch._C._will_engine_execute_node(node))


def _has_hooks(parameter: Tensor) -> bool:
    after = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return bool(parameter._backward_hooks) or bool(after)
