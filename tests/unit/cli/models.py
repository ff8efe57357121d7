"""Models for command lines."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Skip(nn.Module):
    """Four layers; the first one's output is added after the third."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        first = torch.relu(self.layers[0](x))
        x = torch.relu(self.layers[1](first))
        x = torch.relu(self.layers[2](x)) + first
        if mask is not None:
            x = x * mask
        y: Tensor = self.layers[3](x)
        return y


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.table(ids)))
        return y


class Indices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).argmax(1)


READY = Skip()


def with_args() -> tuple[nn.Module, tuple[Tensor]]:
    return Skip(), (torch.randn(8, 8),)


def with_kwargs() -> tuple[nn.Module, tuple[Tensor], dict[str, Tensor]]:
    return Skip(), (torch.randn(8, 8),), {"mask": torch.ones(8, 8)}


def broken() -> nn.Module:
    raise RuntimeError("no model today")


def number() -> int:
    return 3


def backwards_schedule(stages: int, ranks: int, micro_batches: int) -> object:
    from fxpipe.schedules.gpipe import gpipe

    return gpipe(stages, ranks, micro_batches)
