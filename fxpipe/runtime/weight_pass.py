"""Gradients of weights, put off: the input pass of a backward leaves them in a queue.

A linear layer's backward has two halves of equal size. Only one of them, the gradient of its input, is
waited for by the stage before; the other one, the gradient of its weight, can be computed at any
later time (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241). An operator that is run
through `Deferring` has a private graph, which the stage's own graph enters through one node:

    stage's graph     x ──► [ Deferred ] ──► y          input pass: gradient of y → gradient of x
                              │      ▲
    private graph     x' ──► op ──► y'                  weight pass: gradient of y' → gradient of w'
                      w' ───┘

The halves are computed by autograd's own formulas, so they have the bits of a backward that is not
split. All uses of a weight in one micro-batch share ``w'`` and are differentiated together: their sum
is made where, and in the order, that the engine makes it in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from fxpipe.runtime.reentry import may_be_in_checkpoint

_Operator = Callable[..., Any]


class WeightQueue:
    """What the input pass of one stage and micro-batch leaves to be done for the weights."""

    __slots__ = ("_leaves", "_parameters", "_uses")

    def __init__(self) -> None:
        self._leaves: dict[Tensor, Tensor] = {}
        self._parameters: dict[Tensor, Tensor] = {}
        self._uses: list[_Use] = []

    def leaf(self, parameter: Tensor) -> Tensor:
        """What stands for a parameter in the private graphs."""
        leaf = self._leaves.get(parameter)
        if leaf is None:
            leaf = self._leaves[parameter] = parameter.detach().requires_grad_()
            self._parameters[leaf] = parameter
        return leaf

    def put(self, use: _Use) -> None:
        """Note the gradient that has arrived at an operator."""
        self._uses.append(use)

    def run(self) -> None:
        """Accumulate the gradients of all weights, and let go of what was kept for them."""
        uses, self._uses = self._uses, []
        self._leaves = {}
        for group in _groups(uses):
            leaves = list(dict.fromkeys(leaf for use in group for leaf in use.leaves))
            made, grads = [use.made for use in group], [use.grad for use in group]
            found = torch.autograd.grad(made, leaves, grads, allow_unused=True)
            for leaf, grad in zip(leaves, found, strict=True):
                if grad is not None:  # through autograd, so that hooks of the parameter are called
                    torch.autograd.backward((self._parameters[leaf],), (grad,))
            for use in group:
                use.forget()
        self._parameters = {}


class _Use:
    """One operator of a forward.

    Attributes:
        made: its result in its private graph.
        leaves: what stands for its weights there.
        grad: the gradient of the result, once it is known.
    """

    __slots__ = ("grad", "leaves", "made")

    def __init__(self, made: Tensor, leaves: Sequence[Tensor]) -> None:
        self.made: Any = made
        self.leaves = leaves
        self.grad: Any = None

    def forget(self) -> None:
        self.made = self.grad = None


def _groups(uses: Sequence[_Use]) -> list[list[_Use]]:
    """The uses in order of arrival, those together that have a weight in common."""
    group_of: dict[Tensor, list[_Use]] = {}
    groups: dict[int, list[_Use]] = {}
    for use in uses:
        mine = [use]
        for leaf in use.leaves:
            known = group_of.get(leaf)
            if known is not None and known is not mine:
                groups.pop(id(known), None)
                mine = [*(each for each in known if each not in mine), *mine]
        groups[id(mine)] = mine
        for each in mine:
            group_of.update(dict.fromkeys(each.leaves, mine))
    return list(groups.values())


class _Deferred(torch.autograd.Function):
    """An operator whose backward returns its inputs' gradients and puts off its weights'."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        run: Callable[[Sequence[Tensor]], Tensor],
        queue: WeightQueue,
        leaves: Sequence[Tensor],
        *inputs: Tensor,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        with torch.enable_grad():
            inner = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]
            made = run(inner)
        ctx.use = _Use(made, leaves)
        ctx.inner = [tensor for tensor in inner if tensor.requires_grad]
        ctx.marks = [tensor.requires_grad for tensor in inner]
        ctx.queue = queue
        return made.data  # no view of it: the model may change in place what it gets

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        use, inner, ctx.use, ctx.inner = ctx.use, ctx.inner, None, None
        if grad is None:
            return (None,) * (4 + len(ctx.marks))
        use.grad = grad
        found = iter(
            torch.autograd.grad(use.made, inner, grad, retain_graph=True, allow_unused=True)
            if inner
            else ()
        )
        ctx.queue.put(use)
        return (None, None, None, None, *(next(found) if mark else None for mark in ctx.marks))


_deferred: Final[Callable[..., Tensor]] = _Deferred.apply


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
        leaves: list[Tensor] = []
        inputs: list[Tensor] = []
        places: list[int] = []
        filled = list(args)
        for at, value in enumerate(args):
            if not isinstance(value, Tensor):
                continue
            if _is_weight(value):
                filled[at] = queue.leaf(value)
                leaves.append(filled[at])
            else:
                inputs.append(value)
                places.append(at)

        def run(inner: Sequence[Tensor]) -> Tensor:
            for at, value in zip(places, inner, strict=True):
                filled[at] = value
            made: Tensor = function(*filled, **kwargs)
            filled.clear()
            return made

        return _deferred(self._anchor, run, queue, tuple(leaves), *inputs)


def _can_defer(args: Sequence[Any]) -> bool:
    """Whether an operator has a weight to differentiate, and nothing around it forbids to put it off.

    What runs inside a user's checkpoint runs again in the backward; where a hook takes what graphs
    save, or a transform of functorch is active, the graph has to be the operator's own.
    """
    return (
        any(isinstance(value, Tensor) and _is_weight(value) for value in args)
        and not may_be_in_checkpoint()
        and not torch._C._are_functorch_transforms_active()
    )


def _is_weight(value: Tensor) -> bool:
    return isinstance(value, nn.Parameter) and value.requires_grad and value.is_leaf
