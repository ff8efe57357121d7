"""Models with something to tell: a decision, a leaf by fallback, numbers that cross, a large block."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


class Router(nn.Module):
    """Decides on what it computes: it has to stay whole."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.gate(x).sum() > 0 else x


class Teller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("limit", torch.tensor(0.5))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.router = Router()
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor, scale: float = 2.0) -> Tensor:
        rows = x.shape[0]
        if mask.float().mean() > self.limit:
            x = x * mask
        for block in self.blocks:
            x = block(x)
        x = self.router(x)
        return self.head(x).reshape(rows, 2, 4) * scale


def teller() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Teller(), (torch.randn(4, 8), torch.ones(4, 8))


class Closed(nn.Module):
    """Hands its inner module a value past its arguments: that module's call cannot be repeated."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.held: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + self.held[0]

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inner = self.Inner()

    def forward(self, x: Tensor) -> Tensor:
        self.inner.held = [self.first(x)]
        return self.inner(x)
