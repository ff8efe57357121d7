"""Small models, each with one thing that a runtime can get wrong."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Chain(nn.Module):
    """Nothing special."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh()))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class SkipNet(nn.Module):
    """Convolutions, in-place activations, skips through `cat`: its backward gives strided gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True))
        self.down2 = nn.Sequential(nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(inplace=True))
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up2 = nn.Conv2d(16, 6, 3, padding=1)
        self.up = nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(b)
        d = self.up2(torch.cat((c, b), 1))
        e = F.interpolate(d, scale_factor=2.0)
        return self.up(torch.cat((e, a), 1))


class ManyReaders(nn.Module):
    """One value read in every stage, more than once in some, and by the output."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        memory = torch.tanh(self.encode(x))
        y = memory
        for block in self.blocks:
            y = torch.tanh(block(y) + memory * y.sigmoid() + memory.sin())
        return y, memory


class Normed(nn.Module):
    """Batch norms; one without momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4, momentum=None),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4, affine=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Tied(nn.Module):
    """The output layer uses the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mid = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mid(self.embed(ids))))


class State(NamedTuple):
    hidden: Tensor
    factor: float
    mask: Tensor | None


class Containers(nn.Module):
    """What goes from stage to stage is a tuple with numbers and None in it; an output is constant."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, object]:
        a, b = torch.split(self.first(x), 4, dim=1)
        mean = x.size(1) * 0.5
        c = self.second(torch.cat((b, a), 1)) * mean
        d = self.third(torch.tanh(c)) * scale
        return {"out": d, "loss": (d - x).square().mean(), "name": "containers", "none": None}


class Noisy(nn.Module):
    """Random numbers of every kind: layers, functions in a module, functions in the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4))
        self.block = NoisyBlock()
        self.second = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2))
        self.alpha = nn.AlphaDropout(0.3)
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(self.first(x))
        y = F.dropout(y, 0.3, self.training) + 0.1 * torch.randn_like(y)
        y = self.alpha(self.second(y))
        y = self.second(y) + torch.rand(8, device=y.device)
        return self.last(y)


class NoisyBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(self.inner(x), 0.25, self.training)
        return self.drop(y) + F.dropout(x, 0.1, self.training)
