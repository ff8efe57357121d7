"""A two-stage pipeline written by hand on lanes: what lanes are for, with no runtime around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fxpipe.runtime.lane import Lane

ROWS = 4


class Encoder(nn.Module):
    """Gives its result and a skip connection; neither is kept by autograd for its own backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        return self.second(hidden.relu()), hidden * 2


class Decoder(nn.Module):
    """Joins both and ends with class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        scores: Tensor = self.last(self.norm(x) + skip + 1)
        return scores


class Joined(nn.Module):
    """Both as one model."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.decoder(*self.encoder(x))
        return scores


class Constants(nn.Module):
    """Reads tensors that are no parameters, and makes some on its input's device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.table = torch.arange(6.0)
        self.register_buffer("scale", torch.full((6,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * self.table + torch.arange(6, device=x.device)
        y = self.second(y) * self.table * self.scale
        return y + torch.tensor([1.0, 2, 3, 4, 5, 6], device=x.device) * torch.tensor(2.0)


def stages() -> tuple[Encoder, Decoder]:
    torch.manual_seed(0)
    return Encoder(), Decoder()


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(ROWS, 6, generator=generator),
            torch.randint(0, 3, (ROWS,), generator=generator),
        )
        for _ in range(count)
    ]


def parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]


def plain_step(count: int) -> tuple[list[Tensor], list[Tensor]]:
    """Losses and gradients of the same model run micro-batch by micro-batch without lanes."""
    encoder, decoder = stages()
    losses = []
    for x, y in batches(count):
        loss = F.cross_entropy(decoder(*encoder(x)), y)
        loss.backward()
        losses.append(loss.detach())
    return losses, [p.grad for p in parameters((encoder, decoder)) if p.grad is not None]


@dataclass
class TwoStages:
    """One step, forwards first, on two lanes."""

    encoder: nn.Module
    decoder: nn.Module
    first: Lane
    second: Lane

    def step(self, data: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        flat = [tensor for pair in data for tensor in pair]
        for lane in (self.first, self.second):
            lane.begin(flat)
        kept = [self._forward(x, y) for x, y in data]
        for made, read, loss in kept:
            self._backward(made, read, loss)
        losses = [loss.detach() for _, _, loss in kept]
        del kept, made, read, loss
        for lane in (self.first, self.second):
            lane.finish(losses)
        return losses

    def _forward(self, x: Tensor, y: Tensor) -> tuple[list[Any], list[Tensor], Tensor]:
        (x,) = self.first.from_caller([x])
        with self.first.compute():
            made = list(self.encoder(x))
        event = self.first.mark()
        edges = [torch.autograd.graph.get_gradient_edge(tensor) for tensor in made]
        arrived = self.second.receive([tensor.detach() for tensor in made], event, self.first)
        del made
        read = [tensor.detach().requires_grad_() for tensor in arrived]
        (y,) = self.second.from_caller([y])
        with self.second.compute():
            loss = F.cross_entropy(self.decoder(*read), y)
        return edges, read, loss

    def _backward(self, made: list[Any], read: list[Tensor], loss: Tensor) -> None:
        with self.second.compute():
            loss.backward()
        gradients = [tensor.grad for tensor in read]
        for tensor in read:
            tensor.grad = None
        event = self.second.mark()
        arrived = self.first.receive(gradients, event, self.second)
        del gradients
        with self.first.compute():
            torch.autograd.backward(made, arrived)
