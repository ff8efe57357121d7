"""What the steps of random modules do: small pieces of forwards, each with one habit of real ones.

A value is a floating tensor ``[rows, LENGTH, WIDTH]``; a step makes one out of one or two others. Steps
get the module that runs them, for its mode, its buffers and what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH: Final = 4
LENGTH: Final = 3

Step = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Residual(nn.Module):
    """Modules inside a module, one of them in place."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x + self.act(self.layer(self.norm(x))) * scale


class Normed(nn.Module):
    """Batch norm over the features."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Recurrent(nn.Module):
    """A recurrent layer; the last state is added to every step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y, state = self.rnn(x)
        return y + state[-1][:, None]


class Counting(nn.Module):
    """Buffers that are read, counted up, written in place and replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("scale", torch.ones(()))
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
            self.scale = self.scale * 0.5 + 0.5
        return (x - self.mean) * self.gain / self.scale


class Keeping(nn.Module):
    """Keeps what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.sin(self.layer(x))
        return self.last + x


class Routed(nn.Module):
    """Rows go to the expert they like best: sizes depend on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        share, best = self.router(flat).softmax(-1).max(-1)
        made = torch.zeros_like(flat)
        for n, expert in enumerate(self.experts):
            (rows,) = torch.where(best == n)
            if len(rows):
                made.index_add_(0, rows, expert(flat[rows]) * share[rows, None])
        return made.view_as(x)


class Deciding(nn.Module):
    """Goes one way or the other, as a value says."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) if x.detach().sum().item() > 0 else torch.tanh(self.down(x))


class Hooked(nn.Module):
    """Its layer has a hook that changes the result, and logs of what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.log: list[Tensor] = []
        self.layer.register_forward_hook(lambda module, args, output: output + args[0])

    def forward(self, x: Tensor) -> Tensor:
        self.log.clear()
        self.log.append(self.layer(x))
        return self.log[-1].tanh() + self.log[0]


class Attending(nn.Module):
    """Attention over the positions, under a mask made from the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        return x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class Tripled(torch.autograd.Function):
    """Its gradient is not that of its arithmetic."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * 3 + 0 * x, None


def over_time(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    state, made = b[:, 0], []
    for step in range(a.size(1)):
        state = torch.tanh(a[:, step] + 0.5 * state)
        made.append(state)
    return torch.stack(made, dim=1)


def while_wide(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    size = a.shape[-1]
    while size > 1:
        size //= 2
        a = a + b.roll(size, dims=-1) / size
    return a


def by_shape(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    if a.shape == b.shape and a.dim() == 3 and a.size(-1) % 2 == 0:
        return torch.cat(a.chunk(2, dim=-1)[::-1], dim=-1) * b.mean(-1, keepdim=True)
    return a


def by_mode(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    return a * 2 if module.training else a - b


def reshaped(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    rows, length, width = a.shape
    flat = a.reshape(rows * length, width).view(rows, -1)
    return flat.unflatten(1, (width, length)).transpose(1, 2) + b.flatten(1).view_as(b)


def in_place(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    total = a + b
    total[..., 0] = 0.5
    total[:, 1:].mul_(2).add_(1)
    total += a
    return total.relu_()


def written_late(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    """Writes into a value that other steps may have read, or will read."""
    a.add_(0.25)
    return a + b


def written_through_a_view(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    part = a[..., 1:].transpose(1, 2)
    part[:, 0].mul_(0.5)
    return b - a


def pooled(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    return F.adaptive_avg_pool1d(a.mT, 1).mT + b.amax(1, keepdim=True) * a


def paired(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    apart = a[:, :, None] - b[:, None]
    return torch.einsum("nijd,nijd->nid", apart, apart).div(a.size(1)) + b


def shrunk(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    half = a[:, ::2][:, : -(-a.size(1) // 2)]
    return half.repeat_interleave(2, dim=1)[:, : b.shape[1]] * b


def guarded(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    try:
        return (a @ b) + a
    except RuntimeError:
        assert a.shape[-1] != b.shape[-2]
        return torch.addcmul(a, b, b, value=0.5)


def table(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    found = a.new_zeros(a.shape[0], 2, *a.shape[1:])
    found[:, 0], found[:, 1] = a, b.sigmoid()
    return found.prod(1)


def indexed(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    order = a.detach().argsort(-1)
    picked = b.gather(-1, order)[:, torch.arange(b.size(1)).flip(0)]
    return picked + F.one_hot(a.argmax(-1), a.shape[-1]) * torch.where(a > 0, a, -b)


def without_gradient(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        gate = (a * 2).sigmoid()
    return gate * b + a.detach()


def in_half(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = a @ b.mT
    return scores.float().softmax(-1) @ b


def checkpointed(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    return checkpoint(lambda x, y: torch.tanh(x * y) + x, a, b, use_reentrant=False)


def comprehended(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    parts = {n: (part, n) for n, part in enumerate(a.unbind(-1))}
    return torch.stack([part * (n + 1) for part, n in parts.values()], dim=-1) - b


def handwritten(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    return Tripled.apply(a, 0.5) + b


def spectral(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(a, dim=-1) * (1 + 0.5j)
    return torch.fft.irfft(spectrum, n=a.shape[-1], dim=-1) + b


def dropped(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    return F.dropout(a, 0.3, module.training) + b


def noisy(module: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    return a + 0.1 * torch.randn_like(b) if module.training else a


FUNCTIONS: Final[dict[str, Step]] = {
    "add": lambda module, a, b: a + b,
    "multiply": lambda module, a, b: a * b,
    "tanh": lambda module, a, b: a.tanh(),
    "same": lambda module, a, b: a,
    "view": lambda module, a, b: a.transpose(1, 2).transpose(1, 2),
    **{
        function.__name__: function
        for function in (
            over_time, while_wide, by_shape, by_mode, reshaped, in_place, written_late,
            written_through_a_view, table, pooled, paired, shrunk, guarded, indexed,
            without_gradient, in_half, checkpointed, comprehended, handwritten, spectral, dropped, noisy,
        )
    },
}  # fmt: skip
MODULES: Final[dict[str, Callable[[], nn.Module]]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "residual": Residual,
    "normed": Normed,
    "recurrent": Recurrent,
    "counting": Counting,
    "keeping": Keeping,
    "routed": Routed,
    "deciding": Deciding,
    "hooked": Hooked,
    "attending": Attending,
    "dropout": lambda: nn.Dropout(0.4),
    "dropout_in_place": lambda: nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2, inplace=True)
    ),
}
TIED: Final = ("module_again", "weight_again")
RANDOM: Final = frozenset({"dropped", "noisy", "dropout", "dropout_in_place"})
