from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, grad_and_value, jacrev, vmap

import fxpipe
from fxpipe.capture.lifted import lift
from tests.cases.blocks import WIDTH, Block
from tests.exact import Kind, assert_exact, assert_exact_at_every_cut, vectors
from tests.kinds.check import each


def test_values_are_taken_out_and_put_in_again() -> None:
    scale, shift = torch.tensor(2.0), 3

    def inner(x: Tensor, *, twice: bool = True) -> Tensor:
        return x * scale * (2 if twice else 1)

    def outer(x: Tensor) -> Tensor:
        return inner(x) + shift

    found = lift(outer)
    assert found is not None
    lifted, held = found
    assert [id(value) for value in held] == [id(scale), id(shift)]
    assert lifted.around(held)(torch.ones(())).item() == 7
    assert lifted.around([torch.tensor(1.0), 10])(torch.ones(())).item() == 12
    assert outer(torch.ones(())).item() == 7


def test_what_needs_nothing_is_itself() -> None:
    found = lift(torch.sin)
    assert found is not None
    assert found[0].around([]) is torch.sin


@pytest.mark.parametrize(
    "function",
    [
        nn.Linear(2, 2),
        nn.Linear(2, 2).forward,
        functools.partial(torch.mul, torch.ones(1)),
        (lambda layer: lambda x: layer(x))(nn.Linear(2, 2)),
        (lambda values: lambda x: values.append(x))([]),
    ],
)
def test_what_no_graph_could_show_is_not_lifted(function: Any) -> None:
    assert lift(function) is None


class Transforms(nn.Module):
    """The model's own forward transforms a function."""

    def __init__(self, transform: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.weights = nn.Parameter(torch.randn(3, WIDTH, WIDTH))
        self.transform = transform

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.transform(self, self.one(x)))


def ensemble(model: Transforms, x: Tensor) -> Tensor:
    return vmap(lambda weight: x @ weight)(model.weights).mean(0)


def by_rows(model: Transforms, x: Tensor) -> Tensor:
    rows = x.shape[0]
    return vmap(lambda row, weight: row @ weight / rows, in_dims=(0, None))(x, model.weights[0])


def of_each_row(model: Transforms, x: Tensor) -> Tensor:
    scale = x.detach().abs().mean()
    return vmap(grad(lambda row: (row.sin() * scale).sum()))(x)


def jacobians(model: Transforms, x: Tensor) -> Tensor:
    return vmap(jacrev(lambda row: row.sin().sum()), chunk_size=2)(x)


def both(model: Transforms, x: Tensor) -> Tensor:
    found, value = grad_and_value(lambda y, w: (y @ w[0]).square().sum(), (0, 1))(x, model.weights)
    return found[0] + value / 100 + found[1].mean()


def elementwise(model: Transforms, x: Tensor) -> Tensor:
    return vmap(torch.sin)(x)


KINDS = {
    transform.__name__: Kind(lambda transform=transform: Transforms(transform), vectors(WIDTH))
    for transform in (ensemble, by_rows, of_each_row, jacobians, both, elementwise)
}


@each(KINDS)
def test_transforms_in_the_model_s_own_forward(kind: Kind) -> None:
    assert_exact(kind, 1)
    assert_exact_at_every_cut(kind, 3)


def test_mapped_functions_may_be_computed_again() -> None:
    """Derivatives may not: torch refuses them there, as under its own checkpoints."""
    assert_exact(KINDS["ensemble"], 2, recompute="always")


def test_transforms_of_modules_are_refused_there() -> None:
    model = Transforms(lambda model, x: vmap(model.one)(x))
    with pytest.raises(fxpipe.CaptureError, match=r"it uses a transform of torch\.func"):
        fxpipe.trace(model, (torch.randn(4, WIDTH),))
