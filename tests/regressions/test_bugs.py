"""One test per bug that once gave a wrong result, each with its story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
