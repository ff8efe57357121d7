"""One test per bug that once gave a wrong result, each with its story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fxpipe


def mean_square(output: Tensor, target: Any = None) -> Tensor:
    return output.square().mean()


def compiled(model: nn.Module, cut: str = "1", **options: Any) -> fxpipe.Pipeline:
    options.setdefault("chunks", 4)
    return fxpipe.compile(
        model, ["cpu"] * 2, cuts=[cut], costs="estimate", threads_per_rank=1, **options
    )


def rows(count: int = 8, width: int = 8, seed: int = 1) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def grads_of(model: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in model.parameters()]
    assert all(grad is not None for grad in found)
    return [grad.clone() for grad in found if grad is not None]


def same(ones: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


# ---- buffers -------------------------------------------------------------------------------------


class Cumulative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.detach().mean(0)
        return self.linear(x) * self.total


def spectral() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))


# The first forward of a call kept the user's own buffer for its rerun. The end of the call put the
# last value into that very buffer, before the backward came to rerun anything.
@pytest.mark.parametrize("make", [Cumulative, spectral])
@pytest.mark.parametrize("chunks", [1, 4])
def test_a_rerun_after_the_call_reads_the_buffer_of_its_forward(
    make: Callable[[], nn.Module], chunks: int
) -> None:
    found = []
    for recompute in ("never", "always"):
        torch.manual_seed(0)
        model = nn.Sequential(make(), make())
        with compiled(model, chunks=chunks, recompute=recompute) as pipe:
            for _ in range(2):
                mean_square(pipe(rows())).backward()
        found.append(grads_of(model) + [b.clone() for b in model.buffers()])
    assert same(*found)


# ---- the user's own checkpoints ------------------------------------------------------------------


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.drop(self.linear(x)))


class NoisyFunction(Noisy):
    """Draws by a function: the module runs under a dispatch mode."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.dropout(self.linear(x), 0.5))


class Checkpointed(nn.Module):
    """Checkpoints side by side, one in another, of a module that is called more than once."""

    def __init__(self, how: str, noisy: type[Noisy]) -> None:
        super().__init__()
        self.how = how
        self.left = noisy()
        self.right = noisy()

    def run(self, function: Callable[..., Tensor], *args: Tensor) -> Tensor:
        if self.how == "plain":
            return function(*args)
        result: Tensor = checkpoint(function, *args, use_reentrant=self.how == "reentrant")
        return result

    def both(self, x: Tensor) -> Tensor:
        return self.run(self.right, self.left(self.right(x)))

    def forward(self, x: Tensor) -> Tensor:
        first = self.run(self.left, x)
        second = self.run(self.right, x * 2)
        return self.run(self.both, second) + self.run(self.left, first)


# The backward ran the checkpoint's forward again with the counters, and the micro-batch, of whatever
# forward had come last: other dropout masks than the forward's.
@pytest.mark.parametrize("noisy", [Noisy, NoisyFunction])
@pytest.mark.parametrize("how", ["reentrant", "not reentrant"])
@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_dropout_in_checkpoints_of_the_user(
    noisy: type[Noisy], how: str, recompute: str, schedule: str
) -> None:
    found = []
    for kind in ("plain", how):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), Checkpointed(kind, noisy), Checkpointed(kind, noisy))
        with compiled(model, "2", seed=3, recompute=recompute, schedule=schedule) as pipe:
            pipe.step(rows(), loss_fn=mean_square)
            mean_square(pipe(rows())).backward()
        found.append(grads_of(model))
    # A reentrant checkpoint adds a shared module's gradients in an order of its own.
    for mine, plain in zip(*found, strict=True):
        assert torch.equal(mine, plain) or how == "reentrant"
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-6)


class ChecksItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def inner(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(x)))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return result


# Deferred batch norms counted what a checkpoint ran again as one more call.
def test_batch_norm_in_checkpoints_of_the_user_counts_once() -> None:
    model = nn.Sequential(ChecksItself(), ChecksItself())
    with compiled(model) as pipe:
        pipe.step(rows(), loss_fn=mean_square)
        mean_square(pipe(rows())).backward()
    assert model[0].norm.num_batches_tracked.item() == 2
    assert model[1].norm.num_batches_tracked.item() == 2


class DrawsInside(ChecksItself):
    def inner(self, x: Tensor) -> Tensor:
        return F.dropout(super().inner(x), 0.5)


# What is drawn in a checkpoint inside of the module that has the keys cannot be drawn again by them.
def test_draws_that_cannot_be_repeated_are_refused() -> None:
    with (
        compiled(nn.Sequential(DrawsInside(), DrawsInside())) as pipe,
        pytest.raises(fxpipe.FxPipeError, match=r"recompute='always'"),
    ):
        pipe.step(rows(), loss_fn=mean_square)


class DrawsInBackward(Noisy):
    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        if made.requires_grad:
            made.register_hook(lambda grad: self.drop(grad))
        return made


def test_dropout_that_only_the_backward_calls_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), DrawsInBackward(), nn.Linear(8, 8))
    with (
        compiled(model, "2") as pipe,
        pytest.raises(fxpipe.FxPipeError, match="cannot be told which call"),
    ):
        pipe.step(rows(), loss_fn=mean_square)
