"""Modules that draw from ``random`` or NumPy: kept whole in a stage, they draw as in eager."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.equivalence.compare import same
from tests.losses import mean_square
from tests.reference import run_eager_step


class Skips(nn.Module):
    """Stochastic depth, with a scale from NumPy and one from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.generator = random.Random(7)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and random.random() < 0.5:
            return x
        scale = float(np.random.rand()) + self.generator.random() if self.training else 1.5
        return x + self.body(x) * scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.skips = nn.Sequential(Skips(), Skips())
        self.last = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.skips(self.first(x))
        for layer in self.last:
            h = layer(h).tanh()
        return h


def seed() -> None:
    random.seed(11)
    np.random.seed(11)


@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_steps_draw_as_eager_micro_batches_do(recompute: str, schedule: str) -> None:
    torch.manual_seed(0)
    model = Net()
    eager = copy.deepcopy(model)
    x = torch.randn(8, 8)
    options: dict[str, Any] = {"recompute": recompute, "schedule": schedule}
    with fxpipe.compile(
        model, ["cpu"] * 2, 4, cuts=["last.0"], threads_per_rank=1, costs="estimate", **options
    ) as pipe:
        assert [leaf.path for leaf in pipe.capture(x)._made.capture.leaves] == [
            "skips.0",
            "skips.1",
        ]
        seed()
        losses = [pipe.step(x, loss_fn=mean_square).loss for _ in range(3)]
        drawn = random.random(), np.random.rand()
    seed()
    wanted = [run_eager_step(eager, (x,), chunks=4, loss_fn=mean_square).loss for _ in range(3)]
    assert drawn == (random.random(), np.random.rand())
    for one, two in zip(losses, wanted, strict=True):
        same(one, two, "loss")
    for (name, one), two in zip(model.named_parameters(), eager.parameters(), strict=True):
        same(one.grad, two.grad, name)
    assert model.skips[0].generator.getstate() == eager.skips[0].generator.getstate()


class Scales(nn.Module):
    """By a number from NumPy."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(np.random.rand())


class Chance(nn.Module):
    """By one from ``random``."""

    def forward(self, x: Tensor) -> Tensor:
        return x * random.random()


class Own(nn.Module):
    """By one from torch, with a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.rand(8, generator=self.generator)


@pytest.mark.parametrize("recompute", ["never", "except_last", "always"])
@pytest.mark.parametrize("backend", ["inline", "local"])
@pytest.mark.parametrize("cut", ["2", "5.layer", "6"])
def test_generators_of_several_kinds_and_stages(cut: str, backend: str, recompute: str) -> None:
    """Each stage repeats what it has drawn, and disturbs no other one."""
    torch.manual_seed(0)
    layers = (Chance(), nn.Linear(8, 8), Own(), nn.Linear(8, 8), Own(), Scales(), nn.Linear(8, 8))
    model = nn.Sequential(nn.Linear(8, 8), *layers)
    eager = copy.deepcopy(model)
    x = torch.randn(8, 8)
    options = {"backend": backend, "recompute": recompute, "schedule": "gpipe"}
    with fxpipe.compile(model, ["cpu"] * 2, 4, costs="estimate", cuts=[cut], **options) as pipe:
        for _ in range(2):
            seed()
            found = pipe.step(x, loss_fn=mean_square)
            after = random.random(), np.random.rand()
            seed()
            expected = run_eager_step(eager, (x,), {}, chunks=4, loss_fn=mean_square)
            assert after == (random.random(), np.random.rand())
            assert torch.equal(found.loss, expected.loss)
            for one, other in zip(model.parameters(), eager.parameters(), strict=True):
                assert torch.equal(one.grad, other.grad)
