"""Gradients of weights, put off: the input pass of a backward leaves them in a queue.

A linear layer's backward has two halves of equal size. Only one of them, the gradient of its input, is
waited for by the stage before; the other one, the gradient of its weight, can be computed at any
later time (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241). An operator that is run
through `Deferring` enters the stage's graph as one node, whose backward gives the gradient of its input:

    stage's graph     x ──► [ operator ] ──► y     input pass: gradient of y → gradient of x
                                │
    queue                    [ use ]               weight pass: gradient of y, x → gradient of w

The halves are computed as autograd computes them (`fxpipe.runtime.weight_formulas`). Where this would
need more knowledge than formulas have, the node has a private graph, and each half is a backward in it:

    private graph     x' ──► operator ──► y'       input pass: gradient of y' → gradient of x'
                      w' ───┘                      weight pass: gradient of y' → gradient of w'

Either way the bits are those of a backward that is not split. Gradients of a weight that is used
several times are added in the order in which they arrive, as the engine adds them in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from fxpipe.runtime.reentry import may_be_in_checkpoint
from fxpipe.runtime.weight_formulas import formula_of
from fxpipe.runtime.weight_queue import PrivateUse, Use, WeightQueue

_Operator: TypeAlias = Callable[..., Any]


class Deferring:
    """Runs operators of one stage so that the gradients of their weights are put off.

    Attributes:
        queue: of the micro-batch whose forward runs; None where no backward follows.
    """

    def __init__(self) -> None:
        self.queue: WeightQueue | None = None
        self._anchor = torch.zeros((), requires_grad=True)

    def __call__(self, operator: str | _Operator) -> _Operator:
        """An operator, or the tensor method of that name, run so; stage sources call it."""
        function = getattr(Tensor, operator) if isinstance(operator, str) else operator

        def called(*args: Any, **kwargs: Any) -> Any:
            return self.run(function, args, kwargs)

        return called

    def run(self, function: _Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The operator's result; its positional arguments are tensors, numbers or tuples of these."""
        queue = self.queue
        if queue is None or not _can_defer(args):
            return function(*args, **kwargs)
        found = None if kwargs else formula_of(function, args)
        if found is None:
            return self._run_privately(queue, function, args, kwargs)
        formula, x, weight, bias = found
        return _deferred(self._anchor, x, Use(formula, weight, bias), queue)

    def _run_privately(
        self,
        queue: WeightQueue,
        function: _Operator,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        parameters: list[Tensor] = []
        inputs: list[Tensor] = []
        places: list[int] = []
        filled = list(args)
        for at, value in enumerate(args):
            if _is_weight(value):
                filled[at] = queue.leaf(value)
                parameters.append(value)
            elif isinstance(value, Tensor):
                inputs.append(value)
                places.append(at)
        leaves = tuple(map(queue.leaf, parameters))

        def run(inner: Sequence[Tensor]) -> tuple[Tensor, PrivateUse]:
            for at, value in zip(places, inner, strict=True):
                filled[at] = value
            made: Tensor = function(*filled, **kwargs)
            filled.clear()
            return made, PrivateUse(made, tuple(parameters), leaves)

        return _deferred_privately(self._anchor, run, queue, *inputs)


def _can_defer(args: Sequence[Any]) -> bool:
    """Whether an operator has a weight to differentiate, and nothing around it forbids to put it off.

    What runs inside a user's checkpoint runs again in the backward; where a hook takes what graphs
    save, or a transform of functorch is active, the graph has to be the operator's own.
    """
    if may_be_in_checkpoint() or torch._C._are_functorch_transforms_active():
        return False
    return any(map(_is_weight, args))


def _is_weight(value: Any) -> bool:
    return isinstance(value, nn.Parameter) and value.requires_grad and value.is_leaf


class _Deferred(torch.autograd.Function):
    """An operator whose backward returns its input's gradient and puts off its weights'."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, use: Use, queue: WeightQueue) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, use.weight if ctx.needs_input_grad[1] else None)
        ctx.use, ctx.queue = use, queue
        return use.forward(x).data  # no view: the model may change in place what it gets

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 4
        use, (x, _) = ctx.use, ctx.saved_tensors
        made = use.backward(grad, x) if ctx.needs_input_grad[1] else None
        use.arrived(grad, x)
        ctx.queue.put(use)
        return None, made, None, None


class _DeferredPrivately(torch.autograd.Function):
    """The same for any operator, by backwards in a private graph."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        run: Callable[[Sequence[Tensor]], tuple[Tensor, PrivateUse]],
        queue: WeightQueue,
        *inputs: Tensor,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            inner = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]
            made, ctx.use = run(inner)
        ctx.inner = [tensor for tensor in inner if tensor.requires_grad]
        ctx.marks = [tensor.requires_grad for tensor in inner]
        ctx.queue = queue
        return made.data

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        use, inner, ctx.use, ctx.inner = ctx.use, ctx.inner, None, None
        if grad is None:
            return (None,) * (3 + len(ctx.marks))
        use.grad = grad
        found = iter(
            torch.autograd.grad(use.made, inner, grad, retain_graph=True, allow_unused=True)
            if inner
            else ()
        )
        ctx.queue.put(use)
        return (None, None, None, *(next(found) if mark else None for mark in ctx.marks))


_deferred: Final[Callable[..., Tensor]] = _Deferred.apply
_deferred_privately: Final[Callable[..., Tensor]] = _DeferredPrivately.apply
