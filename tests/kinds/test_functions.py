"""Hand-written functions of autograd, in every style of writing them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tests.cases.blocks import WIDTH, Block
from tests.exact import Kind, vectors
from tests.kinds.check import assert_works, each


class Scale(torch.autograd.Function):
    """Takes numbers, None and strings beside tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, bias: Tensor | None, mode: str) -> Tensor:
        ctx.factor, ctx.mode, ctx.has_bias = factor, mode, bias is not None
        ctx.save_for_backward(x)
        y = x * factor if mode == "times" else x + factor
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        given = grad * ctx.factor + 0 * x
        return given, None, grad.sum(0) if ctx.has_bias else None, None


class Halves(torch.autograd.Function):
    """Several results, one without a gradient; the context set up in a function of its own."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x[:, ::2].clone(), x[:, 1::2].clone(), x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.shape = inputs[0].shape
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, even: Tensor, odd: Tensor, place: Tensor) -> Tensor:
        grad = even.new_zeros(ctx.shape)
        grad[:, ::2], grad[:, 1::2] = even * 2, odd * 3
        return grad


class DoubleInPlace(torch.autograd.Function):
    """Changes its argument and returns it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


class StraightThrough(torch.autograd.Function):
    """Rounds; the gradient passes as if it did not. Wants None for gradients that are not there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return (x * 4).round() / 4, x * 0.5

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, other: Tensor | None) -> Tensor | None:
        if other is None:
            return grad
        return other if grad is None else grad + other


class Reversed(torch.autograd.Function):
    """Turns the gradient round; saves what it made, and checks who needs a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        made = torch.tanh(x * weight)
        ctx.save_for_backward(made, weight, x)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        made, weight, x = ctx.saved_tensors
        inner = -grad * (1 - made * made)
        first = inner * weight if ctx.needs_input_grad[0] else None
        return first, (inner * x).sum(0) if ctx.needs_input_grad[1] else None


class Notes(torch.autograd.Function):
    """Writes down what it computed in a list that it is handed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, notes: list[Tensor]) -> Tensor:
        notes.append(x.detach().exp())
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * 2, None


class Uses(nn.Module):
    """Two blocks with something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def between(self, x: Tensor) -> Tensor:
        raise AssertionError

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.between(self.one(x)))


class UsesScale(Uses):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(WIDTH))

    def between(self, x: Tensor) -> Tensor:
        x = Scale.apply(x, 0.5, self.bias, "times")
        x = Scale.apply(x, 2, None, "plus")
        return Scale.apply(x, x.shape[-1] / WIDTH, self.bias, "times")


class UsesHalves(Uses):
    def between(self, x: Tensor) -> Tensor:
        even, odd, place = Halves.apply(x)
        return torch.cat((odd, even), dim=-1) + place[:, None]


class UsesInPlace(Uses):
    def between(self, x: Tensor) -> Tensor:
        y = x + 1
        z = DoubleInPlace.apply(y)
        return y + z


class UsesStraightThrough(Uses):
    def __init__(self) -> None:
        super().__init__()
        self.quantise = StraightThrough.apply

    def between(self, x: Tensor) -> Tensor:
        rounded, _ = self.quantise(x)
        _, half = StraightThrough.apply(rounded)
        return rounded + half


class UsesReversed(Uses):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def between(self, x: Tensor) -> Tensor:
        frozen = Reversed.apply(x.detach(), self.weight)
        return Reversed.apply(x, self.weight.detach()) + frozen


class UsesInner(Uses):
    """Modules that hold the function's call, several times."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((WIDTH,), 0.5))

        def forward(self, x: Tensor) -> Tensor:
            return Reversed.apply(Scale.apply(x, 2.0, None, "plus"), self.weight)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(self.Layer(), self.Layer(), self.Layer())

    def between(self, x: Tensor) -> Tensor:
        return self.layers(x)


class UsesNotes(Uses):
    """A module that hands the function a list."""

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            notes: list[Tensor] = []
            return Notes.apply(x, notes) + notes[0]

    def __init__(self) -> None:
        super().__init__()
        self.layer = self.Layer()

    def between(self, x: Tensor) -> Tensor:
        return self.layer(x)


KINDS = {
    "numbers beside tensors": Kind(UsesScale, vectors(WIDTH), tied=None),
    "several results": Kind(UsesHalves, vectors(WIDTH)),
    "in place": Kind(UsesInPlace, vectors(WIDTH)),
    "gradients that are not there": Kind(UsesStraightThrough, vectors(WIDTH)),
    "gradients that nobody needs": Kind(UsesReversed, vectors(WIDTH), tied=None),
    "in modules": Kind(UsesInner, vectors(WIDTH)),
    "noted in an argument": Kind(UsesNotes, vectors(WIDTH)),
}


@each(KINDS)
def test_their_own_backward_is_used(kind: Kind) -> None:
    assert_works(kind)
