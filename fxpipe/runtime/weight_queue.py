"""What an input pass leaves to be done for the weights, and the doing of it: the weight pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final, TypeAlias, cast

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from fxpipe.runtime.weight_formulas import Formula


class WeightQueue:
    """What the input pass of one stage and micro-batch leaves to be done for the weights."""

    __slots__ = ("_leaves", "_uses")

    def __init__(self) -> None:
        self._leaves: dict[Tensor, Tensor] = {}
        self._uses: list[Use | PrivateUse] = []

    def leaf(self, parameter: Tensor) -> Tensor:
        """What stands for a parameter in the private graphs."""
        leaf = self._leaves.get(parameter)
        if leaf is None:
            leaf = self._leaves[parameter] = parameter.detach().requires_grad_()
        return leaf

    def put(self, use: Use | PrivateUse) -> None:
        """Note that a gradient has arrived at an operator."""
        self._uses.append(use)

    def run(self) -> None:
        """Accumulate the gradients of all weights, and let go of what was kept for them.

        The engine does it, so that hooks of parameters are called; a gradient goes from the node that
        makes it right into ``.grad``, without a copy.
        """
        uses, self._uses = self._uses, []
        self._leaves = {}
        groups = _groups(uses)
        del uses
        ends = []
        while groups:
            parameters, group = groups.pop()
            if any(isinstance(use, PrivateUse) for use in group):  # no backward in a backward
                made = [_summed(parameters, group)]
                _accumulate([_weights(made.pop, *parameters)])
            else:
                ends.append(_weights(partial(_summed, parameters, group), *parameters))
            del group
        if ends:
            _accumulate(ends)


_Group: TypeAlias = tuple[tuple[Tensor, ...], list["Use | PrivateUse"]]
"""Parameters, and all uses of any of them, in order of arrival."""


def _groups(uses: Sequence[Use | PrivateUse]) -> list[_Group]:
    """The uses, those together that have a weight in common."""
    if len({p for use in uses for p in use.parameters}) == sum(len(u.parameters) for u in uses):
        return [(use.parameters, [use]) for use in uses]
    group_of: dict[Tensor, list[int]] = {}
    groups: dict[int, list[int]] = {}
    for at, use in enumerate(uses):
        mine = [at]
        for parameter in use.parameters:
            known = group_of.get(parameter)
            if known is not None and known is not mine:
                groups.pop(id(known), None)
                mine = sorted({*known, *mine})
        groups[id(mine)] = mine
        for each in mine:
            group_of.update(dict.fromkeys(uses[each].parameters, mine))
    together = ([uses[at] for at in group] for group in groups.values())
    return [
        (tuple(dict.fromkeys(p for use in group for p in use.parameters)), group)
        for group in together
    ]


# -- uses ----------------------------------------------------------------------------------------------


class Use:
    """One operator of a forward, with its formula.

    Attributes:
        parameters: those whose gradients are put off: the weight, the bias.
    """

    __slots__ = ("_bias", "_formula", "_grad", "_x", "parameters", "weight")

    def __init__(self, formula: Formula, weight: Tensor, bias: Tensor | None) -> None:
        self._formula = formula
        self._bias = bias
        self._grad: Tensor | None = None
        self._x: Tensor | None = None
        self.weight = weight
        self.parameters: tuple[Tensor, ...] = (weight,)
        if bias is not None and bias.requires_grad:
            self.parameters += (bias,)

    def forward(self, x: Tensor) -> Tensor:
        """The operator's result."""
        return self._formula.forward(x, self.weight, self._bias)

    def backward(self, grad: Tensor, x: Tensor) -> Tensor | None:
        """The gradient of the input."""
        return self._formula.of_input(grad, x, self.weight)

    def arrived(self, grad: Tensor, x: Tensor) -> None:
        """Keep what the weight pass needs."""
        self._grad, self._x = grad, x.detach()

    def weight_grads(self) -> tuple[Tensor | None, ...]:
        """The gradients of the parameters; what was kept for them is let go of."""
        grad, x, self._grad, self._x = self._grad, self._x, None, None
        assert grad is not None
        assert x is not None
        if len(self.parameters) == 1:
            return self._formula.of_weights(grad, x, self.weight, None)[:1]
        return self._formula.of_weights(grad, x, self.weight, self._bias)


class PrivateUse:
    """One operator of a forward, with its private graph.

    Attributes:
        parameters: those whose gradients are put off.
        leaves: what stands for them there.
        made: the operator's result there.
        grad: the gradient of the result, once it is known.
    """

    __slots__ = ("grad", "leaves", "made", "parameters")

    def __init__(
        self, made: Tensor, parameters: tuple[Tensor, ...], leaves: tuple[Tensor, ...]
    ) -> None:
        self.made: Any = made
        self.parameters = parameters
        self.leaves = leaves
        self.grad: Any = None

    def forget(self) -> None:
        """Let go of the graph."""
        self.made = self.grad = None


# -- the weight pass -----------------------------------------------------------------------------------


class _Weights(torch.autograd.Function):
    """A node that makes the gradients of parameters when the engine comes to it."""

    @staticmethod
    def forward(
        ctx: Any, make: Callable[[], Sequence[Tensor | None]], *parameters: Tensor
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.make = make
        # On the parameters' device, so that the engine knows the stream that the gradients come from.
        return _nothing(parameters[0].device).detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        make, ctx.make = ctx.make, None
        return (None, *make())  # nobody else refers to them: they become ``.grad`` as they are


@cache
def _nothing(device: torch.device) -> Tensor:
    return torch.empty(0, device=device)


_weights: Final[Callable[..., Tensor]] = _Weights.apply


def _accumulate(ends: Sequence[Tensor]) -> None:
    """Run the backwards of `_Weights` nodes."""
    _engine_run_backward(
        tuple(ends),
        tuple(_nothing(end.device) for end in ends),
        False,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def _summed(
    parameters: Sequence[Tensor], group: Sequence[Use | PrivateUse]
) -> Sequence[Tensor | None]:
    """The gradients of a group's parameters: sums in order of arrival."""
    first = group[0]
    if len(group) == 1 and isinstance(first, Use):
        return first.weight_grads()
    totals: dict[Tensor, Tensor] = {}
    for is_private, run in itertools.groupby(group, lambda use: isinstance(use, PrivateUse)):
        if is_private:
            _add_private(totals, cast("list[PrivateUse]", list(run)))
            continue
        for use in cast("Iterable[Use]", run):
            for parameter, grad in zip(use.parameters, use.weight_grads(), strict=True):
                if grad is not None:
                    total = totals.get(parameter)
                    totals[parameter] = grad if total is None else total + grad
    return [totals.pop(parameter, None) for parameter in parameters]


def _add_private(totals: dict[Tensor, Tensor], uses: Sequence[PrivateUse]) -> None:
    """Go on with the sums in the private graphs: what is there already is added first."""
    parameter_of = {
        leaf: parameter
        for use in uses
        for leaf, parameter in zip(use.leaves, use.parameters, strict=True)
    }
    begun = [leaf for leaf, parameter in parameter_of.items() if parameter in totals]
    found = torch.autograd.grad(
        [*(use.made for use in uses), *begun],
        list(parameter_of),
        [*(use.grad for use in uses), *(totals[parameter_of[leaf]] for leaf in begun)],
        allow_unused=True,
    )
    for use in uses:
        use.forget()
    for parameter, grad in zip(parameter_of.values(), found, strict=True):
        if grad is not None:
            totals[parameter] = grad
