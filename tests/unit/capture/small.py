"""Small models, one per way of writing a forward."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Mlp(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Residual(nn.Module):
    """Convolution, batch norm, dropout, an in-place sum and an in-place activation."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.drop = nn.Dropout(0.5)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.norm(self.conv(x)))
        y += x
        return self.act(y)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, scale: float | None = None) -> dict[str, Any]:
        h = x
        for block in self.blocks:
            h = block(h)
        h = torch.cat([h, x], 1)[:, :4]
        y = self.head(h.mean((2, 3)))
        return {"y": y, "flat": (h.view(h.shape[0], -1), None), "scale": scale}


class TwoRegions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Mlp(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            mean = x.mean()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.first(x - mean)
            with torch.autocast("cpu", enabled=False):
                h = self.second(h.float())
        return h


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.body = Mlp()
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens)))


class Chain(nn.Module):
    """Modules one after another; like nn.Sequential, but with a forward of its own."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x


class Decides(nn.Module):
    """Its Python looks at a value that only the model knows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        return h * 2 if h.sum() > 0 else h * 3


class MaskDecides(nn.Module):
    """Its Python looks at a value of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Mlp(), Mlp()

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = self.first(x)
        if mask is not None and not bool((mask == 1).all()):
            h = h * mask
        return self.second(h)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.linear(x)
        return self.last * 2


class KeepsBuffer(nn.Module):
    """A moving average as a new tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        self.average = self.average * 0.9 + y.detach().mean(0) * 0.1
        return y - self.average


class PythonRandom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * random.random()


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noisy = x + torch.randn_like(x) * 0.1
        dropped = F.dropout(noisy, 0.5, self.training)
        return self.body(dropped) * torch.rand(x.shape[0], 1)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


class Handwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp()
        self.apply_double = Double.apply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.apply_double(self.body(x))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.drop = Mlp(), Mlp(), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = checkpoint(self.first, x, use_reentrant=False)
        return checkpoint(lambda t: self.drop(self.second(t)), h, use_reentrant=True)


class CallsForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Mlp(), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second.forward(self.first.forward(x)) + self.first.linear.forward(x)


class Writes(nn.Module):
    """Writes into views, into items and into an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.body = nn.Linear(4, 4), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        left = h[:, :2]
        left *= 2
        h[:, 3] = 0
        table = torch.zeros(x.shape[0], 4)
        table[:] = h
        table.add_(1)
        other = torch.empty_like(h)
        other.data = h.data
        return self.body(h) + table + other


class Sizes(nn.Module):
    """Integers that follow the batch size: once, doubled, halved."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.body(x)
        return h.view(x.shape[0] * 2, -1), h[: h.shape[0] // 2].sum(), h.expand(3, -1, -1)


class RowByRow(nn.Module):
    """One module call per row: the number of steps follows the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.body(row) for row in x])


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(self.linear)(x)


@dataclass
class Result:
    value: Any
    pair: Any = None
    count: int = 3


class Pair(NamedTuple):
    first: Any
    second: Any


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


class Containers(nn.Module):
    """Results of every kind, one tensor twice among them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp()

    def forward(self, batch: dict[str, Any], *, bias: torch.Tensor | None = None) -> dict[str, Any]:
        y = self.body(batch["x"])
        if bias is not None:
            y = y + bias
        pair = Pair(y, [batch["more"][0], None])
        return {"result": Result(y, pair), "box": Box(y * 2), "name": "n", "rows": y.shape[0]}


class Relations(nn.Module):
    """A dict whose keys are tuples, handed over and given back, as of graphs of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Typed()

    def forward(self, edges: dict[tuple[str, str], torch.Tensor]) -> dict[Any, torch.Tensor]:
        return self.body({key: value * 2 for key, value in edges.items()})


class Typed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, edges: dict[tuple[str, str], torch.Tensor]) -> dict[Any, torch.Tensor]:
        return {(*key, 1): self.linear(value) for key, value in edges.items()}


class Codebook(nn.Module):
    """A parameter that is no subject of gradients: in training it follows what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)
        chosen = self.codes[nearest]
        if self.training:
            for code in range(3):
                mine = (nearest == code)[:, None]
                mean = (x.detach() * mine).sum(0) / mine.sum().clamp(min=1)
                self.codes.data[code].lerp_(mean, 0.1)
        return x + (chosen - x).detach()


class Normalised(nn.Module):
    """A trained weight that each forward replaces by its normalised self."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.weight.data = F.normalize(self.linear.weight.data, dim=1)
        return self.linear(x)


class Cache:
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []


class Remembers(nn.Module):
    """Keeps its value in an object that the caller hands it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        h = self.linear(x)
        cache.seen.append(h)
        return h + sum(cache.seen)


class WithCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Remembers(), Remembers()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cache = Cache()
        return self.second(self.first(x, cache), cache)


class Leaks(nn.Module):
    """Uses what a forward hook of an inner module got hold of."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.seen: list[torch.Tensor] = []
        self.inner[0].register_forward_hook(lambda module, args, out: self.seen.append(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.clear()
        y = self.inner(x)
        return y + self.seen[0]


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.rnn = nn.LSTM(4, 8, 2, dropout=0.3, batch_first=batch_first)
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        y, state = self.rnn(self.embed(tokens), state)
        return self.head(y), state


class MaskedLoss(nn.Module):
    """The number of tokens in the loss depends on the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Mlp()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.body(x)
        chosen = labels > 0
        return F.cross_entropy(y[chosen], labels[chosen]), y


class Neighbours(nn.Module):
    """A step over a graph: every node has the sum of what its edges bring. Nodes are no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        h = self.first(x).relu()
        return self.second(torch.zeros_like(h).index_add(0, target, h[source]))
