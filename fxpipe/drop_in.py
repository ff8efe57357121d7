"""One differentiable call: the pipeline's forward now, its backward when the loss is differentiated.

    inputs ──┐
             ├─► _Call ──► token ──► _Outputs ──► outputs ──► the user's loss
    anchor ──┘     │                    └ backward: takes the gradients of the outputs
       ▲           └ backward: all micro-batches' backwards; parameters' gradients go to .grad
       │
    _ParameterGuard ◄── parameters        (carries no gradient: it only notices who is asked for)

The token is an empty tensor on the CPU. Autograd runs a node on the thread of its gradient's device,
and has one thread per accelerator: a node that waited there for the backwards of the stages would
keep them from running. With a gradient on the CPU it runs in the thread that called backward.

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
    passage = _Passage()
    token = _Call.apply(run, passage, phony, anchor, *inputs)  # type: ignore[no-untyped-call]
    outputs: tuple[Tensor, ...] = _Outputs.apply(passage, token)  # type: ignore[no-untyped-call]
    return outputs


class _Passage:
    """What `_Call` and `_Outputs` hand each other: outputs one way, their gradients the other."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.grads: Sequence[Tensor | None] = ()


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


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        run: CallRunner,
        passage: _Passage,
        phony: Tensor,
        anchor: Tensor,
        *inputs: Tensor,
    ) -> Tensor:
        ctx.call, passage.outputs = run()
        ctx.passage = passage
        ctx.phony = phony
        ctx.guard = anchor.grad_fn
        ctx.count = len(inputs)
        return phony.new_empty(0)

    @staticmethod
    def backward(ctx: Any, token_grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs_only = not _will_run(_leaf_node(ctx.phony))
        _refuse(ctx, inputs_only)
        call: Call = ctx.call
        ctx.call = None
        grads, ctx.passage.grads = ctx.passage.grads, ()
        with torch.no_grad():
            input_grads = call.backward(grads, inputs_only=inputs_only)
        return (None, None, None, None, *input_grads)


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, passage: _Passage, token: Tensor) -> tuple[Tensor, ...]:
        ctx.passage = passage
        ctx.set_materialize_grads(False)
        outputs, passage.outputs = passage.outputs, []
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, Tensor]:
        ctx.passage.grads = grads
        return None, torch.zeros(0)


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
