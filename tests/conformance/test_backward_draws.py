"""Random numbers drawn in a backward have keys: the same for any number of stages, at every run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxpipe
from tests.conformance.pipes import draw

WIDTH = 4


class _Shake(torch.autograd.Function):
    """Mixes two branches: by other random numbers in the backward."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, two: Tensor) -> Tensor:
        mix = torch.rand(len(one), 1)
        return mix * one + (1 - mix) * two

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        mix = torch.rand(len(grads[0]), 1)
        return mix * grads[0], (1 - mix) * grads[0]


class Shaken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return _Shake.apply(self.one(x), self.two(x)).tanh()  # type: ignore[no-any-return]


class NoisyGradient(nn.Module):
    """Adds noise to the gradient of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x).tanh()
        y.register_hook(lambda grad: grad + torch.randn_like(grad))
        return y


class NoisyWeights(nn.Module):
    """Adds noise to the gradients of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        for parameter in self.parameters():
            parameter.register_hook(lambda grad: grad + torch.randn_like(grad))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).tanh()  # type: ignore[no-any-return]


def gradients(
    kind: type[nn.Module], stages: int, backend: str, seed: int | None = 1, **choices: Any
) -> list[Tensor]:
    """After two steps, both accumulated."""
    torch.manual_seed(0)
    model = nn.Sequential(*(kind() for _ in range(4)))
    x = draw(6, WIDTH)
    with fxpipe.compile(
        model, devices=["cpu"] * stages, chunks=3, seed=seed, backend=backend, **choices
    ) as pipe:
        for _ in range(2):
            pipe.step(x, target=-x, loss_fn=F.mse_loss)
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("kind", [Shaken, NoisyGradient, NoisyWeights])
@pytest.mark.parametrize(
    ("stages", "choices"),
    [
        (2, {"backend": "local"}),
        (3, {"backend": "local"}),
        (4, {"backend": "inline"}),
        (3, {"backend": "inline", "schedule": "gpipe"}),
        (2, {"backend": "inline", "recompute": "always"}),
    ],
    ids=str,
)
def test_they_are_those_of_one_stage(
    kind: type[nn.Module], stages: int, choices: dict[str, Any]
) -> None:
    expected = gradients(kind, 1, "inline")
    found = gradients(kind, stages, **choices)
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("seed", [1, None])
def test_no_two_draws_are_alike(seed: int | None) -> None:
    """Neither in two micro-batches, nor in two stages, nor in two steps."""
    seen: list[Tensor] = []

    class Noted(NoisyGradient):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x).tanh()
            y.register_hook(lambda grad: seen.append(torch.randn(8)))
            return y

    gradients(Noted, 3, "inline", seed)
    seen = seen[-4 * 3 * 2 :]  # what is recorded and measured before draws too
    assert len({tuple(each.tolist()) for each in seen}) == 4 * 3 * 2


def test_the_seed_decides() -> None:
    """That of the pipeline, or else that of torch's generator."""
    ones, others = gradients(Shaken, 2, "inline"), gradients(Shaken, 2, "inline", 2)
    assert not any(map(torch.equal, ones, others))
    drawn = [gradients(NoisyGradient, 2, "inline", None) for _ in range(2)]
    assert all(map(torch.equal, *drawn))


def test_the_caller_s_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    torch.manual_seed(5)
    model = nn.Sequential(NoisyGradient(), NoisyGradient())
    x = draw(4, WIDTH)
    with fxpipe.compile(model, devices=["cpu"] * 2, chunks=2, seed=1, backend="inline") as pipe:
        pipe.step(x, target=-x, loss_fn=F.mse_loss)
        before = torch.get_rng_state()
        pipe.step(x, target=-x, loss_fn=F.mse_loss)
        assert torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(state)
