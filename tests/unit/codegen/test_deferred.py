from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpipe.codegen.generate import generate
from fxpipe.ir.stage import StageProgram, WeightScope
from fxpipe.portals.edges import link
from tests.builders import build_capture, plan_at


def program(model: nn.Module, x: Tensor, split: bool = True) -> StageProgram:
    capture = build_capture(model, x)
    plan = plan_at(capture)
    (made,) = generate(capture, plan, link(capture, plan), model, split_backward=split)
    return made


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Model(nn.Module):
    """Its own product, a layer, one of a user's class, and norms, which cannot be split."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.product = nn.Linear(4, 4), nn.LayerNorm(4), Product()
        self.head = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.norm(self.layer(x))) @ self.head


def test_layers_products_of_modules_and_products_of_the_source() -> None:
    made = program(Model(), torch.ones(2, 4))
    assert made.split_layers == ("layer",)
    assert made.split_scopes == (WeightScope("product", ("product.bias", "product.weight")),)
    assert made.needs_deferring
    assert "self.deferring(operator.matmul)(addmm, self.head)" in made.source


def test_nothing_is_put_off_where_no_schedule_asks_for_it() -> None:
    made = program(Model(), torch.ones(2, 4), split=False)
    assert (made.split_layers, made.split_scopes, made.needs_deferring) == ((), (), False)
    assert "deferring" not in made.source


class Shared(nn.Module):
    """A weight in a layer and in a norm of its values; another layer shares its bias."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.free = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.bias = self.one.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.free(self.two(self.one(x))) * self.one.weight.sum()


def test_a_use_that_cannot_be_split_keeps_all_that_hangs_on_it() -> None:
    assert program(Shared(), torch.ones(2, 4)).split_layers == ("free",)


class Own(nn.Linear):
    pass


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain, self.sparse = nn.Embedding(5, 4), nn.Embedding(5, 4, sparse=True)
        self.own = Own(4, 4)
        self.circular = nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular")
        self.functional = nn.Parameter(torch.ones(5, 4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.plain(ids) + self.sparse(ids) + F.embedding(ids, self.functional, sparse=True)
        return self.circular(self.own(x).transpose(1, 2))


def test_layers_with_gradients_or_code_of_their_own_are_left_alone() -> None:
    made = program(Tables(), torch.tensor([[1, 2, 3]]))
    assert made.split_layers == ("plain",)
    assert made.split_scopes == (WeightScope("own", ("own.weight", "own.bias")),)
    assert "self.deferring(F.embedding)" not in made.source


class Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.ones(2, 4, 4)), nn.Parameter(torch.ones(2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bhi,hij->hbj", x, self.one).bmm(self.two)


def test_products_in_batches_and_by_letters() -> None:
    made = program(Letters(), torch.ones(3, 2, 4))
    assert "self.deferring(torch.einsum)('bhi,hij->hbj', x, self.one)" in made.source.replace(
        '"bhi,hij->hbj"', "'bhi,hij->hbj'"
    )
    assert 'self.deferring("bmm")(einsum, self.two)' in made.source


class Force(nn.Module):
    """Differentiates inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.energy, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (force,) = torch.autograd.grad(self.energy(x).tanh().sum(), x, create_graph=True)
        return self.last(force)


def test_a_stage_that_differentiates_inside_its_forward_puts_nothing_off() -> None:
    made = program(Force(), torch.ones(2, 4))
    assert made.split_layers == ()
    assert made.split_scopes == ()
    assert not made.needs_deferring
