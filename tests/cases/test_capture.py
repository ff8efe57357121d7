"""Forwards that decide, loop, and hide their arithmetic in functions of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from tests.cases.blocks import WIDTH, Block, each
from tests.exact import (
    RECOMPUTE,
    SCHEDULES,
    Batch,
    Kind,
    assert_exact_in_every_mode,
    assert_same,
    vectors,
)
from tests.reference import run_eager_step


class Router(nn.Module):
    """Goes one way or the other, as the values say."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().sum()) > 0:
            return self.up(x)
        return self.down(x)


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.router, self.last = Block(), Router(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.router(self.one(x)))


class UntilSmall(nn.Module):
    """Repeats itself for as long as the values are large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.tanh(self.layer(x)) * 0.7
            if x.abs().max().item() < 0.4:
                break
        return x


class InputDecides(nn.Module):
    """The model itself looks at an input: a padded batch takes another way."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.two(self.one(x))
        if not mask.all():
            h = h.masked_fill(~mask, 0.0)
        return self.three(h)


def sometimes_padded(rows: int) -> Batch:
    mask = torch.ones(rows, WIDTH, dtype=torch.bool)
    mask[-1, 2:] = False
    return (torch.randn(rows, WIDTH), mask), {}


class Loops(nn.Module):
    """A loop over a slice of the layers, decisions on shapes, an assertion, a `while`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, depth: int | None = None, **unused: Any) -> Tensor:
        for n, layer in enumerate(self.layers[: depth or len(self.layers)]):
            if n % 2 == 0 and x.shape[-1] > 1:
                x = x + layer(self.norm(x))
            else:
                x = layer(x)
        assert x.dim() == 2
        assert x.size(-1) == WIDTH
        n = 1
        while n < x.shape[-1]:
            x = x + x.roll(n, dims=-1)
            n *= 4
        return x


class Damped(torch.autograd.Function):
    """A product whose gradient for its input is halved on purpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return 0.5 * (grad @ weight), grad.flatten(0, -2).t() @ x.flatten(0, -2)


class DampedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return Damped.apply(x, self.weight)


class OwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.damped, self.last = Block(), DampedLayer(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.damped(self.one(x))))


KINDS = {
    "a router": Kind(Routed, vectors(WIDTH), cuts=("router", "last")),
    "a loop until": Kind(
        lambda: nn.Sequential(Block(), UntilSmall(), Block()), vectors(WIDTH), cuts=("1", "2")
    ),
    "an input decides": Kind(InputDecides, sometimes_padded, cuts=("two", "three")),
    "loops": Kind(
        Loops, vectors(WIDTH), cuts=("layers.1", "layers.3"), tied=("norm.weight", "norm.bias")
    ),
    "fewer loops": Kind(
        Loops,
        vectors(WIDTH, depth=3, extra=1),
        cuts=("layers.1", "layers.2"),
        tied=("norm.weight", "norm.bias"),
    ),
    "own function": Kind(OwnFunction, vectors(4, WIDTH), cuts=("damped", "last")),
}


@each(KINDS)
def test_what_python_decides_is_decided_anew(name: str, stages: int) -> None:
    assert_exact_in_every_mode(KINDS[name], stages)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_micro_batches_take_different_ways(stages: int, schedule: str, recompute: str) -> None:
    """And where no micro-batch went, gradients stay None."""
    kind = KINDS["a router"]
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, stages, schedule=schedule, recompute=recompute, chunks=4) as pipe:
        for x in (
            torch.linspace(-3, 3, 8)[:, None].expand(8, WIDTH),
            torch.full((8, WIDTH), -3.0),
            torch.full((8, WIDTH), 3.0),
        ):
            model.zero_grad()
            eager.zero_grad()
            found = pipe.step(x, loss_fn=kind.loss)
            expected = run_eager_step(eager, (x,), chunks=4, loss_fn=kind.loss)
            assert_same(found.loss, expected.loss, "loss")
            for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
                assert_same(p.grad, q.grad, name)
        unused = {p.grad is None for p in model.router.down.parameters()}
        unused |= {p.grad is None for p in model.router.up.parameters()}
        assert unused == {True, False}, "the last batch took one way only"


def test_the_deciding_module_is_told_with_its_line() -> None:
    args, _ = KINDS["a router"].data(4)
    capture = fxpipe.trace(Routed(), args)
    (leaf,) = capture.leaves
    assert leaf.path == "router"
    assert "test_capture.py" in leaf.source
    assert "depends on values" in leaf.reason


def test_the_function_s_own_backward_is_used() -> None:
    """The layers before it get half the gradient that arithmetic alone would give them."""
    kind = KINDS["own function"]
    model, plain = kind.model(), kind.model()
    args, _ = kind.data(6)
    with kind.pipe(model, 3) as pipe:
        pipe.step(*args, loss_fn=kind.loss)
    h = F.linear(plain.one(args[0]), plain.damped.weight)
    kind.loss(plain.last(torch.tanh(h))).backward()
    torch.testing.assert_close(model.one.layer.weight.grad * 2, plain.one.layer.weight.grad)
    torch.testing.assert_close(model.damped.weight.grad, plain.damped.weight.grad)
