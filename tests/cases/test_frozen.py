"""Parameters and values that have no gradient, in any stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, WORDS, Block, each, words
from tests.exact import Kind, assert_exact_in_every_mode, vectors


class Tower(nn.Module):
    """Words through two blocks; `freeze` says which parts do not train."""

    def __init__(self, *freeze: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.one, self.two = Block(), Block()
        self.head = nn.Linear(WIDTH, 4)
        for name in freeze:
            self.get_submodule(name).requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.two(self.one(self.embed(ids))))


class Adapter(nn.Module):
    """A frozen layer with a trained correction of low rank."""

    def __init__(self, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, rank, bias=False)
        self.up = nn.Linear(rank, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.base(x) + self.up(self.down(x)))


class Gate(nn.Module):
    """A frozen middle between trained ends, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Block()
        self.middle = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.gate = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.last = Block()
        self.never = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        x = torch.tanh(self.middle(x)) * torch.sigmoid(self.gate(x))
        return self.last(x)


class SideBranch(nn.Module):
    """A branch that only counts if the caller says so: else its parameters have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.side, self.middle, self.last = (Block() for _ in range(4))

    def forward(self, x: Tensor, use_side: bool = False) -> Tensor:
        h = self.one(x)
        side = self.side(x)
        h = self.middle(h)
        return self.last(h + side if use_side else h)


class NothingToTrain(nn.Module):
    """A stage of plain functions, without a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.last = Block(), Block()
        self.shape = nn.Sequential(nn.Tanh(), nn.Softmax(-1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.shape(self.one(x) * 2))


class OnlyBias(nn.Module):
    """Some parameters of one layer train, others do not."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(x)))


class Detaches(nn.Module):
    """A value of the first stage is handed on without its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.one(x)
        b = self.two(a.detach())
        with torch.no_grad():
            c = a * 2
        return self.three(b + c), a


class Guide(nn.Module):
    """A module works without gradients, and a result is of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.guide, self.last = Block(), Block(), Block()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.one(x)
        with torch.no_grad():
            scale = self.guide(h)
        return self.last(h * scale), h.detach().argmax(-1)


KINDS = {
    "first stage": Kind(lambda: Tower("embed", "one"), words(), cuts=("two", "head")),
    "middle stage": Kind(lambda: Tower("two"), words(), cuts=("two", "head")),
    "last stage": Kind(lambda: Tower("head"), words(), cuts=("two", "head")),
    "all but the last": Kind(lambda: Tower("embed", "one", "two"), words(), cuts=("two", "head")),
    "the ends": Kind(lambda: Tower("embed", "one", "head"), words(), cuts=("two", "head")),
    "frozen first, input with gradient": Kind(
        lambda: nn.Sequential(Block().requires_grad_(False), Block(), Block()),
        lambda rows: ((torch.randn(rows, WIDTH).requires_grad_(),), {}),
        cuts=("1", "2"),
    ),
    "all frozen, input with gradient": Kind(
        lambda: nn.Sequential(Block(), Block(), Block()).requires_grad_(False),
        lambda rows: ((torch.randn(rows, WIDTH).requires_grad_(),), {}),
        cuts=("1", "2"),
    ),
    "adapters": Kind(
        lambda: nn.Sequential(Adapter(), Adapter(), Adapter()), vectors(WIDTH), cuts=("1", "2")
    ),
    "divided adapter": Kind(
        lambda: nn.Sequential(Adapter(), Adapter()), vectors(WIDTH), cuts=("0.up", "1.down")
    ),
    "gate": Kind(Gate, vectors(WIDTH), cuts=("middle", "last")),
    "branch without use": Kind(SideBranch, vectors(WIDTH), cuts=("side", "last")),
    "branch in use": Kind(SideBranch, vectors(WIDTH, use_side=True), cuts=("side", "last")),
    "no parameters": Kind(NothingToTrain, vectors(WIDTH), cuts=("shape", "last")),
    "biases alone": Kind(OnlyBias, vectors(WIDTH), cuts=("two", "three")),
    "a module without gradients": Kind(Guide, vectors(WIDTH), cuts=("guide", "last")),
    "detached": Kind(Detaches, vectors(WIDTH), cuts=("two", "three")),
}


@each(KINDS)
def test_gradients_are_where_eager_has_them(name: str, stages: int) -> None:
    """None where eager has None: never zeros."""
    assert_exact_in_every_mode(KINDS[name], stages)


def test_no_gradient_is_sent_into_a_frozen_first_stage() -> None:
    kind = KINDS["first stage"]
    with kind.pipe(kind.model(), 2) as pipe:
        (edge,) = [e for e in pipe.stage_graph.edges if (e.producer, e.consumers) == (0, (1,))]
        assert not edge.is_differentiable
        args, _ = kind.data(6)
        pipe.step(*args, loss_fn=kind.loss)
    assert all(p.grad is None for p in pipe.module.one.parameters())
    assert all(p.grad is not None for p in pipe.module.two.parameters())


def freeze_first(model: nn.Module) -> None:
    model.one.requires_grad_(False)


def freeze_last(model: nn.Module) -> None:
    model.head.requires_grad_(False)


def unfreeze(model: nn.Module) -> None:
    model.requires_grad_(True)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_freezing_between_steps(stages: int, recompute: str) -> None:
    """Gradual unfreezing needs no new pipeline."""
    kind = Kind(Tower, words(), cuts=("two", "head"))
    model, eager = kind.model(), kind.model()
    changes: tuple[Callable[[nn.Module], None], ...] = (freeze_first, unfreeze, freeze_last)
    with kind.pipe(model, stages, recompute=recompute, chunks=1) as pipe:
        for change in changes:
            for one in (model, eager):
                one.zero_grad()
                change(one)
            args, _ = kind.data(4)
            pipe.step(*args, loss_fn=kind.loss)
            kind.loss(eager(*args)).backward()
            for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
                assert (mine.grad is None) == (theirs.grad is None)
                assert mine.grad is None or torch.equal(mine.grad, theirs.grad)
