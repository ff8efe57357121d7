"""Models whose backward is split, with what can come in the way of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Projection(nn.Module):
    """A layer of the user's own: its forward multiplies with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, WIDTH), self.weight)
        return flat.view(x.shape) + x @ self.weight


class Experts(nn.Module):
    """A weight for each of a few heads: products in batches, and by letters."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(5, WIDTH, WIDTH) / 4)
        self.two = nn.Parameter(torch.randn(5, WIDTH, WIDTH) / 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.bmm(x.transpose(0, 1), self.one).transpose(0, 1)
        return x + torch.einsum("bhi,hij->bhj", y, self.two)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return 3 * grad * ctx.factor, None


class Stack(nn.Module):
    """Blocks, with one of the middle ones replaced."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        if middle is not None:
            self.blocks[2] = middle
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Twice(nn.Module):
    """One weight in two layers of a stage, and in one more place."""

    def __init__(self, elsewhere: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.elsewhere = elsewhere

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(F.gelu(self.layer(x))) + F.linear(x, self.layer.weight)
        return y * self.layer.bias if self.elsewhere else y


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.block, self.reentrant = Block(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return y


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Scale.apply(self.block(x), 0.5)
        return y


class Adapted(nn.Module):
    """A frozen layer with a low-rank update."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x).mul_(2.0), inplace=True)


class Without(nn.Module):
    """Its weights get gradients only where grad mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet, self.layer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = self.quiet(x).sigmoid()
        return gate * self.layer(x)


class Convolutions(nn.Module):
    """Every layer of convolution, and embeddings, over one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4, padding_idx=0)
        self.one = nn.Conv1d(4, 6, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose1d(6, 6, 2, stride=2, output_padding=1)
        self.two = nn.Conv2d(1, 3, 3, padding="same", dilation=2)
        self.up2 = nn.ConvTranspose2d(3, 2, 3, padding=1)
        self.three = nn.Conv3d(1, 2, (1, 3, 3), padding=(0, 1, 1))
        self.up3 = nn.ConvTranspose3d(2, 1, 1)
        self.around = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")

    def forward(self, ids: Tensor) -> Tensor:
        x = self.up(self.one(self.table(ids).transpose(1, 2))).unsqueeze(1)
        x = self.up2(self.two(x))
        x = self.up3(self.three(x.unsqueeze(1))).squeeze(1)
        return self.around(x[:, :1]).flatten(1)


def _hooked() -> nn.Module:
    model = Stack()
    model.blocks[1].up.weight.register_hook(lambda grad: 2 * grad)
    model.blocks[3].up.register_forward_hook(lambda module, args, result: result * 1.5)
    model.blocks[4].register_full_backward_hook(lambda module, into, out: (into[0] * 0.5,))
    return model


def _frozen() -> nn.Module:
    model = Stack()
    for part in (model.first, model.blocks[2], model.blocks[4].up):
        part.requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "blocks": Stack,
    "experts": lambda: Stack(Experts()),
    "own multiplications": lambda: Stack(Projection()),
    "a weight used again": lambda: Stack(Twice(elsewhere=False)),
    "a weight used otherwise": lambda: Stack(Twice(elsewhere=True)),
    "checkpoint": lambda: Stack(Checkpointed(reentrant=False)),
    "reentrant checkpoint": lambda: Stack(Checkpointed(reentrant=True)),
    "own function": lambda: Stack(Scaled()),
    "low-rank update": lambda: Stack(Adapted()),
    "in place": lambda: Stack(InPlace()),
    "no_grad": lambda: Stack(Without()),
    "weight_norm": lambda: Stack(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
    "hooks": _hooked,
    "frozen parts": _frozen,
    "convolutions": Convolutions,
}
