"""Buffers, running statistics, random numbers and modes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, Block, each, images
from tests.exact import (
    CHUNKS,
    RECOMPUTE,
    SCHEDULES,
    Kind,
    assert_exact_in_every_mode,
    assert_same,
    vectors,
)
from tests.reference import run_eager_step


class Normed(nn.Module):
    """Two batch norms, one with a cumulative average; and what follows them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.two, self.norm_two = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=None)
        self.three = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm_one(self.one(x)))
        x = F.relu(self.norm_two(self.two(x)))
        return self.three(x)


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.drop_one = Block(), nn.Dropout(0.5)
        self.two, self.drop_two = Block(), nn.Dropout(0.5)
        self.three = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop_one(self.one(x))
        return self.three(self.drop_two(self.two(x)))


class Modes(nn.Module):
    """Everything that depends on the training flag: functions, layers, Python."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = Block(), nn.BatchNorm1d(WIDTH), Block()
        self.alpha = nn.FeatureAlphaDropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.one(x), 0.5, training=self.training)
        x = self.two(self.norm(x))
        if self.training:
            return 2 * x
        return x


class Partly(nn.Module):
    """A submodule is kept in evaluation mode whatever the model's mode is."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = Block(), nn.BatchNorm1d(WIDTH), Block()

    def train(self, mode: bool = True) -> Partly:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.norm(self.one(x)))


class Held(nn.Module):
    """Persistent and other buffers, a parameter of the model's own, read in several stages."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()
        self.register_buffer("table", torch.linspace(0, 1, WIDTH), persistent=False)
        self.register_buffer("scale", torch.tensor(2.0))
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x) + self.table
        x = self.two(x) * self.scale * self.gain + self.table
        return self.three(x) + self.table


class Counts(nn.Module):
    """Buffers that forward changes: in place, by a new tensor, and only in training."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y = torch.tanh(self.layer(x))
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            return y - self.mean

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = self.Layer(), self.Layer(), self.Layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(x)))


class Probe(nn.Module):
    """A layer that hooks into the gradient of what it is handed, and doubles it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(self.see)
        return self.layer(x)

    def see(self, grad: Tensor) -> Tensor:
        self.seen.append(grad.detach())
        return grad * 2


class Probes(nn.Module):
    """What the layer in the middle hooks into is read in later stages too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.probe, self.last = Block(), Probe(), Block()

    def forward(self, x: Tensor) -> Tensor:
        early = self.one(x)
        return self.last(self.probe(early)) * early + early.sin()


KINDS = {
    "batch norm, per micro-batch": Kind(Normed, images(), cuts=("two", "three")),
    "modes": Kind(Modes, vectors(WIDTH), cuts=("norm", "two"), random=True),
    "a part in evaluation mode": Kind(Partly, vectors(WIDTH), cuts=("norm", "two")),
    "dropout": Kind(Drops, vectors(WIDTH), cuts=("two", "three"), random=True),
    "buffers": Kind(Held, vectors(WIDTH), cuts=("two", "three")),
    "counting buffers": Kind(Counts, vectors(WIDTH), cuts=("two", "three")),
    "hooks": Kind(
        lambda: nn.Sequential(Block(), Probe(), Block()), vectors(WIDTH), cuts=("1", "2")
    ),
    "hooks on a skip": Kind(Probes, vectors(WIDTH), cuts=("probe", "last")),
}


@each(KINDS)
def test_state_is_eager_s(name: str, stages: int) -> None:
    assert_exact_in_every_mode(KINDS[name], stages)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_deferred_statistics_are_those_of_the_batch(
    stages: int, schedule: str, recompute: str
) -> None:
    """One update per step, recomputed or not, whatever the number of micro-batches."""
    kind = KINDS["batch norm, per micro-batch"]
    model, eager = kind.model(), kind.model()
    options: dict[str, Any] = {"schedule": schedule, "recompute": recompute}
    with kind.pipe(model, stages, batch_norm="deferred", chunks=4, **options) as pipe:
        for step in range(2):
            (x,), _ = kind.data(8, seed=step)
            first = copy.deepcopy(model.norm_one)
            first(model.one(x))
            pipe.step(x, loss_fn=kind.loss)
            run_eager_step(eager, (x,), chunks=4, loss_fn=kind.loss)
            for name, buffer in first.named_buffers():
                torch.testing.assert_close(model.norm_one.get_buffer(name), buffer)
            for (name, mine), theirs in zip(model.named_buffers(), eager.buffers(), strict=True):
                torch.testing.assert_close(mine, theirs, msg=name)
            assert model.norm_two.num_batches_tracked == step + 1
        for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
            assert_same(p.grad, q.grad, name)
        with torch.no_grad():
            pipe.eval()
            torch.testing.assert_close(pipe(x), eager.eval()(x))


def test_a_seed_gives_the_same_masks_under_every_mode() -> None:
    kind = KINDS["dropout"]
    found = []
    for stages in (1, 2, 3):
        for schedule in SCHEDULES:
            for recompute in RECOMPUTE:
                model = kind.model()
                options: dict[str, Any] = {"schedule": schedule, "recompute": recompute}
                with kind.pipe(model, stages, seed=None, **options) as pipe:
                    torch.manual_seed(3)
                    (x,) = (torch.ones(9, WIDTH),)
                    losses = [pipe.step(x, loss_fn=kind.loss).loss for _ in range(2)]
                found.append((*losses, *(p.grad for p in model.parameters())))
                assert not torch.equal(losses[0], losses[1]), "each step draws anew"
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_modes_switch_back_and_forth() -> None:
    kind = KINDS["modes"]
    model = kind.model()
    with kind.pipe(model, 3) as pipe:
        (x,), _ = kind.data(8)
        pipe.eval()
        with torch.no_grad():
            assert torch.equal(pipe(x), pipe(x))
            torch.testing.assert_close(pipe(x), model(x))
            pipe.train()
            assert not torch.equal(pipe(x), pipe(x))
            model.eval()
            torch.testing.assert_close(pipe(x), model(x))


def test_hooks_do_not_pile_up_and_see_the_whole_gradient() -> None:
    kind = KINDS["hooks on a skip"]
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, 3) as pipe:
        for step in range(3):
            args, _ = kind.data(6, seed=step)
            pipe.step(*args, loss_fn=kind.loss)
            run_eager_step(eager, args, chunks=CHUNKS, loss_fn=kind.loss)
            assert len(model.probe.seen) == CHUNKS, "once per micro-batch"
            assert all(map(torch.equal, model.probe.seen, eager.probe.seen))
            model.probe.seen.clear()
            eager.probe.seen.clear()


def test_names_of_buffers_in_the_state() -> None:
    kind = KINDS["buffers"]
    model = kind.model()
    with kind.pipe(model, 2) as pipe:
        state = pipe.state_dict()
        assert list(state) == list(model.state_dict())
        assert "table" not in state
        state = {name: value * 2 for name, value in state.items()}
        pipe.load_state_dict(state)
        plain = kind.model()
        plain.load_state_dict(state)
        (x,), _ = kind.data(6)
        with torch.no_grad():
            torch.testing.assert_close(pipe(x), plain(x))
