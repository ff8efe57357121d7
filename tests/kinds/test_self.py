"""What a forward keeps on the model: tensors, buffers, counters, caches; modules made late."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.cases.blocks import WIDTH, Block
from tests.exact import CHUNKS, Kind, assert_same, mean_square, vectors
from tests.kinds.check import assert_works, each


class KeepsLast(nn.Module):
    """A submodule that keeps what it computed for whoever wants to look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.tanh(self.layer(x))
        return self.last * 2


class ReadsLast(nn.Module):
    """The model reads an attribute that its submodule has just set."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.keeps, self.two = Block(), KeepsLast(), Block()

    def forward(self, x: Tensor) -> Tensor:
        y = self.keeps(self.one(x))
        assert self.keeps.last is not None
        return self.two(y) + self.keeps.last


class Collects(nn.Module):
    """Layers keep a loss of their own; the model adds them up at the end."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
            self.extra = torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            share = self.router(x).softmax(-1)
            self.extra = share.mean(0).square().sum()
            return torch.tanh(self.layer(x)) * share.amax(-1, keepdim=True)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return x, sum(layer.extra for layer in self.layers)


class Logs(nn.Module):
    """Layers append what they made to a list of their own, which the model empties and reads."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.log: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.layer(x))
            self.log.append(x.mean())
            return x

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            layer.log.clear()
            x = layer(x)
        return x, torch.stack([value for layer in self.layers for value in layer.log]).sum()


class RootTable(nn.Module):
    """The model makes a table at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.linspace(0, 1, WIDTH))
        return self.two(self.one(x) + self.table) * self.table


class RootKeeps(nn.Module):
    """The model itself keeps tensors in attributes, in a list and in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.found: dict[str, Tensor] = {}
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.one(x)
        self.found["hidden"] = self.hidden.detach()
        self.history = [self.hidden, *self.history[:1]]
        return self.two(self.hidden) + self.history[0] + self.found["hidden"]


class Keeps(nn.Module):
    """The model keeps one of its activations, and reads it again at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.feature: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.feature = self.one(x).relu()
        return self.three(self.two(self.feature)) + self.feature


class Grows(nn.Module):
    """A table, a buffer, that forward replaces by a longer one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("table", torch.zeros(0, WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        if self.table.shape[0] < length:
            steps = torch.arange(length)[:, None] / (1 + torch.arange(WIDTH)[None])
            self.table = torch.sin(steps)
        return self.layer(x) + self.table[:length] * self.scale


class LazyBuffer(nn.Module):
    """Tables made at the first call, and again when they are too small."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.length = 0

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] > self.length:
                self.length = x.shape[1]
                table = torch.arange(self.length)[:, None] / torch.arange(1, WIDTH + 1)
                self.register_buffer("table", table.cos(), persistent=False)
            return self.layer(x) + self.table[: x.shape[1]]

    def __init__(self) -> None:
        super().__init__()
        self.one, self.place, self.two = Block(), self.Table(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.place(self.one(x)))


class Memo(nn.Module):
    """A mask kept in a dict by size, as attention layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.masks: dict[int, Tensor] = {}

    def mask(self, size: int) -> Tensor:
        if size not in self.masks:
            self.masks[size] = torch.ones(size, size).tril() / size
        return self.masks[size]

    def forward(self, x: Tensor) -> Tensor:
        y = self.mask(x.shape[1]) @ self.one(x)
        return self.two(y) + self.mask(x.shape[1]).sum()


class Averages(nn.Module):
    """Moving averages of all sorts: buffers written in place, replaced, through `.data`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("unset", None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
                self.scale = 0.9 * self.scale + 0.1 * y.abs().mean()
                self.count.data += 1
        return (y - self.mean) / (self.scale + 0.1)


class TargetNetwork(nn.Module):
    """A slowly moving copy of a module, written to in forward, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target, self.last = Block(), Block(), Block()
        self.target.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.target(x)
        return self.last(self.online(x)) - wanted


class Codebook(nn.Module):
    """Nearest entries, passed straight through, with statistics of their use."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = Block(), Block()
        self.book = nn.Embedding(5, WIDTH)
        self.register_buffer("used", torch.zeros(5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = self.before(x)
        nearest = torch.cdist(z, self.book.weight).argmin(-1)
        found = self.book(nearest)
        self.used.index_add_(0, nearest, torch.ones_like(nearest, dtype=torch.float))
        loss = (found.detach() - z).square().mean() + (found - z.detach()).square().mean()
        return self.after(z + (found - z).detach()), loss, nearest


class Cached(nn.Module):
    """A cache object handed through the layers, and returned."""

    class Layer(nn.Module):
        def __init__(self, at: int) -> None:
            super().__init__()
            self.layer, self.at = nn.Linear(WIDTH, WIDTH), at

        def forward(self, x: Tensor, cache: Cache | None) -> Tensor:
            y = torch.tanh(self.layer(x))
            return y if cache is None else cache.update(self.at, y).mean(1, keepdim=True) + x

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer(n) for n in range(3))

    def forward(self, x: Tensor, use_cache: bool = True) -> tuple[Tensor, Cache | None]:
        cache = Cache() if use_cache else None
        for layer in self.layers:
            x = layer(x, cache)
        return x, cache


class Cache:
    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.length = 0

    def update(self, at: int, new: Tensor) -> Tensor:
        self.keys[at] = torch.cat((self.keys[at], new), dim=1) if at in self.keys else new
        self.length += new.shape[1]
        return self.keys[at]


def lazy() -> nn.Module:
    """Lazy layers after their first call."""
    model = nn.Sequential(nn.LazyLinear(WIDTH), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(4))
    model(torch.randn(2, WIDTH))
    return model


def lazy_convolution() -> nn.Module:
    model = nn.Sequential(
        nn.LazyConv1d(4, 3), nn.GELU(), nn.LazyConvTranspose1d(2, 3), nn.Flatten()
    )
    model(torch.randn(2, 3, WIDTH))
    return model


def made_lazily() -> nn.Module:
    model = LazyBuffer()
    model(torch.randn(2, 3, WIDTH))
    return model


KINDS = {
    "a kept tensor": Kind(lambda: nn.Sequential(Block(), KeepsLast(), Block()), vectors(WIDTH)),
    "a kept tensor, read outside": Kind(ReadsLast, vectors(WIDTH)),
    "kept losses": Kind(Collects, vectors(WIDTH)),
    "logs": Kind(Logs, vectors(WIDTH)),
    "the model's table": Kind(RootTable, vectors(WIDTH), cuts=("two",)),
    "kept by the model": Kind(RootKeeps, vectors(WIDTH)),
    "kept, and read at the end": Kind(Keeps, vectors(WIDTH)),
    "a table that grows": Kind(lambda: nn.Sequential(Block(), Grows(), Block()), vectors(3, WIDTH)),
    "a buffer made at the first call": Kind(LazyBuffer, vectors(3, WIDTH)),
    "a buffer made before": Kind(made_lazily, vectors(4, WIDTH)),
    "a memo": Kind(Memo, vectors(3, WIDTH)),
    "averages": Kind(
        lambda: nn.Sequential(Averages(), nn.Tanh(), Averages(), Block()), vectors(WIDTH)
    ),
    "a target network": Kind(TargetNetwork, vectors(WIDTH)),
    "a codebook": Kind(Codebook, vectors(WIDTH)),
    "a cache": Kind(Cached, vectors(2, WIDTH)),
    "no cache": Kind(Cached, vectors(2, WIDTH, use_cache=False)),
    "lazy layers": Kind(lazy, vectors(WIDTH)),
    "lazy convolutions": Kind(lazy_convolution, vectors(3, WIDTH)),
}


@each(KINDS)
def test_what_is_kept_is_kept_as_in_eager(kind: Kind) -> None:
    assert_works(kind)


def test_kept_tensors_are_there_after_a_step() -> None:
    """The last micro-batch's, as eager leaves them; none of the recording's."""
    kind = KINDS["a kept tensor"]
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, 2) as pipe:
        assert model[1].last is None
        (x,), _ = kind.data(6)
        pipe.step(x, loss_fn=kind.loss)
    eager(x[4:])
    assert torch.equal(model[1].last, eager[1].last)


def test_steps_that_keep_an_activation_add_up() -> None:
    """Gradients of a second step come on top of the first one's, micro-batch by micro-batch."""
    kind = KINDS["kept, and read at the end"]
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, 2) as pipe:
        for step, rows in enumerate((6, 5, 7)):
            (x,), _ = kind.data(rows, seed=step)
            pipe.step(x, loss_fn=kind.loss)
            for part in x.tensor_split(CHUNKS):
                (mean_square(eager(part)) * (len(part) / rows)).backward()
            for one, other in zip(model.parameters(), eager.parameters(), strict=True):
                assert_same(one.grad, other.grad, f"a gradient after step {step}")
    assert model.feature is not None
    assert torch.equal(model.feature, eager.feature)


@pytest.mark.parametrize("whole", [True, False], ids=["in a part", "in the model itself"])
def test_a_call_whose_table_grows_has_a_backward(whole: bool) -> None:
    torch.manual_seed(0)
    model: nn.Module = Grows() if not whole else nn.Sequential(Block(), Grows(), Block())
    eager = copy.deepcopy(model)
    with fxpipe.compile(model, ["cpu"] * 2, CHUNKS, costs="estimate") as pipe:
        for length in (4, 3, 6):
            x = torch.randn(6, length, WIDTH)
            pipe(x).sum().backward()
            torch.cat([eager(part) for part in x.tensor_split(CHUNKS)]).sum().backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    for one, other in zip(model.buffers(), eager.buffers(), strict=True):
        assert_same(one, other, "the table")


class Counter(nn.Module):
    """Python numbers that forward counts up, and one that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(x.shape[0])
        return torch.tanh(self.layer(x))


def test_counters_of_whole_modules_count() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Counter(), Counter(), Counter())
    kind = Kind(lambda: model, vectors(WIDTH), cuts=("1", "2"))
    with kind.pipe(model, 3) as pipe:
        assert [module.calls for module in model] == [0, 0, 0]
        args, _ = kind.data(7)
        pipe.step(*args, loss_fn=kind.loss)
        assert [module.calls for module in model] == [3, 3, 3]
        assert model[0].seen == [3, 2, 2]


def scheduled(step: int) -> float:
    return 1.0 / (1 + step)


class Annealed(nn.Module):
    """A plain attribute that the training loop changes from step to step."""

    def __init__(self, schedule: Callable[[int], Any] = scheduled) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.schedule, self.epoch = schedule, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x) * self.schedule(self.epoch))


def test_attributes_that_the_loop_changes_are_followed() -> None:
    kind = Kind(Annealed, vectors(WIDTH), cuts=("two",))
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, 2) as pipe, torch.no_grad():
        for epoch in range(3):
            model.epoch = eager.epoch = epoch
            args, _ = kind.data(6)
            torch.testing.assert_close(pipe(*args), eager(*args))
