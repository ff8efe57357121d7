"""Arguments of every form, wherever they are read, and Python values that go from stage to stage."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, WORDS, Block, each
from tests.exact import Batch, Kind, assert_exact_in_every_mode


class LateKeywords(nn.Module):
    """Keyword arguments that only the last stage reads: tensors, a number, a flag, None."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    def forward(
        self,
        x: Tensor,
        keep: Tensor | None = None,
        offset: Tensor | None = None,
        factor: float = 1.0,
        negate: bool = False,
    ) -> Tensor:
        x = self.two(self.one(x))
        if offset is not None:
            x = x + offset
        if negate:
            x = -x
        x = self.three(x)
        if keep is not None:
            x = x * keep[..., None].to(x.dtype)
        return x * factor


def sequences(rows: int, **more: Any) -> Batch:
    return (torch.randn(rows, 4, WIDTH),), more


def keep(rows: int) -> Tensor:
    return torch.rand(rows, 4) > 0.3


class MiddleKeyword(nn.Module):
    """A keyword argument that nobody but the middle stage reads."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    def forward(self, x: Tensor, **extra: Any) -> Tensor:
        x = self.one(x)
        x = self.two(x + extra["shift"]) if "shift" in extra else self.two(x)
        return self.three(x)


class Growing(nn.Module):
    """Layers hand each other a state of None, flags, numbers and a tuple that grows."""

    class Layer(nn.Module):
        def __init__(self, sets_bias: bool) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.sets_bias = sets_bias

        def forward(
            self, h: Tensor, bias: Tensor | None, seen: tuple[Tensor, ...], on: bool, count: int
        ) -> Any:
            h = torch.tanh(self.linear(h))
            if on and bias is not None:
                h = h + bias
            if self.sets_bias:
                bias = h.mean(-1, keepdim=True)
            return h, bias, (*seen, h), on, count + h.size(1)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer(n == 1) for n in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        h, bias, seen, on, count = x, None, (), True, 0
        for layer in self.layers:
            h, bias, seen, on, count = layer(h, bias, seen, on, count)
        return h / count, seen


class GrowingList(nn.Module):
    """The same with a list that the layers append to, and a dict that they fill."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, h: Tensor, seen: list[Tensor], notes: dict[str, Any]) -> Tensor:
            h = torch.tanh(self.linear(h))
            seen.append(h)
            notes[f"mean {len(seen)}"] = h.mean(-1)
            notes["last"] = h
            return h

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Any]:
        seen: list[Tensor] = []
        notes: dict[str, Any] = {}
        for layer in self.layers:
            x = layer(x, seen, notes)
        return {"sum": sum(seen), **notes}


class Unread(nn.Module):
    """Nobody reads some of the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.three = Block()

    def forward(self, unused: Tensor, x: Tensor, also: Tensor | None = None) -> Tensor:
        return self.three(self.two(self.one(x)))


class SecondFirst(nn.Module):
    """The second argument is read before the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), Block()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        y = self.b(second)
        return self.c(torch.tanh(self.a(first)) - y)


class WholeMask(nn.Module):
    """A mask and a temperature of no batch dimension: the same for each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mix, self.out = nn.Linear(WIDTH, WIDTH), Block()

    def forward(self, x: Tensor, mask: Tensor, temperature: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / temperature
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out(self.mix(weights @ self.v(x)))


def masked(rows: int) -> Batch:
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    return (torch.randn(rows, 4, WIDTH), mask), {"temperature": torch.tensor(2.0)}


class Point(NamedTuple):
    x: Tensor
    shift: Tensor | None = None


@dataclass
class Setting:
    scale: float
    name: str = "plain"


class Side(Enum):
    LEFT = 1
    RIGHT = 2


class Nested(nn.Module):
    """Containers within containers, an enum, an object and a string among the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = nn.ModuleDict({"left": Block(), "right": Block()})
        self.one, self.two = Block(), Block()

    def forward(
        self, point: Point, more: dict[str, Any], side: Side, setting: Setting, names: list[str]
    ) -> Tensor:
        x = self.one(point.x)
        if point.shift is not None:
            x = x + point.shift
        x = self.sides["left" if side is Side.LEFT else "right"](x)
        for name in names:
            x = x + more["deep"][0][name]
        return self.two(x) * setting.scale


def nested(rows: int) -> Batch:
    more = {"deep": [{"a": torch.randn(rows, WIDTH), "b": torch.randn(rows, WIDTH)}], "none": None}
    point = Point(torch.randn(rows, WIDTH))
    return (point, more, Side.RIGHT), {"setting": Setting(0.5), "names": ["b", "a"]}


class Same(nn.Module):
    """Two arguments that may be one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.three(self.two(self.one(query) * key)) + key


def same_twice(rows: int) -> Batch:
    x = torch.randn(rows, WIDTH)
    return (x, x), {}


def with_gradient(rows: int) -> Batch:
    return (torch.randn(rows, WIDTH).requires_grad_(), torch.randn(rows, WIDTH)), {}


class KeywordOnly(nn.Module):
    """No positional argument at all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.one, self.two = nn.Embedding(WORDS, WIDTH), Block(), Block()

    def forward(self, *, ids: Tensor, weights: Tensor | None = None) -> Tensor:
        x = self.one(self.embed(ids))
        return self.two(x if weights is None else x * weights[..., None])


class Many(nn.Module):
    """As many arguments as the caller likes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, *parts: Tensor) -> Tensor:
        return self.two(sum((self.one(part) for part in parts[1:]), parts[0]))


class Numbers(nn.Module):
    """What passes from stage to stage are sizes, dtypes, shapes and slices."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        half, kind, window = length // 2, x.dtype, slice(0, width, 2)
        h = self.one(x)
        h = self.two(h.reshape(rows * length, width)).view(x.shape)
        h = h[:, :half].to(kind)
        return self.three(h)[..., window] / (rows * half / rows)


KINDS = {
    "late keywords": Kind(
        LateKeywords,
        lambda rows: sequences(rows, keep=keep(rows), factor=0.5, negate=True),
        cuts=("two", "three"),
    ),
    "defaults": Kind(LateKeywords, sequences, cuts=("two", "three")),
    "all keywords": Kind(
        LateKeywords,
        lambda rows: sequences(rows, offset=torch.randn(rows, 1, WIDTH), keep=keep(rows)),
        cuts=("two", "three"),
    ),
    "a keyword in the middle": Kind(
        MiddleKeyword,
        lambda rows: ((torch.randn(rows, WIDTH),), {"shift": torch.randn(rows, WIDTH)}),
        cuts=("two", "three"),
    ),
    "growing tuple": Kind(Growing, sequences, cuts=("layers.1", "layers.2")),
    "growing list": Kind(GrowingList, sequences, cuts=("layers.1", "layers.2")),
    "unread": Kind(
        Unread,
        lambda rows: ((torch.randn(rows, 3), torch.randn(rows, WIDTH)), {"also": torch.ones(())}),
        cuts=("two", "three"),
    ),
    "second first": Kind(
        SecondFirst,
        lambda rows: ((torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)), {}),
        cuts=("a", "c"),
    ),
    "no batch dimension": Kind(WholeMask, masked, cuts=("mix", "out")),
    "nested": Kind(Nested, nested, cuts=("sides.right", "two")),
    "one tensor twice": Kind(Same, same_twice, cuts=("two", "three")),
    "gradients of inputs": Kind(Same, with_gradient, cuts=("two", "three")),
    "keywords only": Kind(
        KeywordOnly,
        lambda rows: (
            (),
            {"ids": torch.randint(0, WORDS, (rows, 4)), "weights": torch.rand(rows, 4)},
        ),
        cuts=("one", "two"),
    ),
    "any number": Kind(
        Many,
        lambda rows: (tuple(torch.randn(rows, WIDTH) for _ in range(4)), {}),
        cuts=("one@2", "two"),
        tied=("one.layer.weight", "one.layer.bias"),
    ),
    "numbers": Kind(Numbers, sequences, cuts=("two", "three")),
}


@each(KINDS)
def test_arguments_reach_their_stage(name: str, stages: int) -> None:
    assert_exact_in_every_mode(KINDS[name], stages)


def test_argument_structures_alternate() -> None:
    """Masks, None and flags from call to call: a recording for each, under one placement."""
    calls = [
        lambda rows: sequences(rows),
        lambda rows: sequences(rows, keep=keep(rows)),
        lambda rows: sequences(rows, keep=keep(rows), negate=True),
        lambda rows: ((torch.randn(rows, 4, WIDTH), None, torch.randn(rows, 4, WIDTH)), {}),
        lambda rows: sequences(rows, keep=None, factor=0.25),
        lambda rows: sequences(rows, keep=keep(rows).float()),
    ]
    kind = Kind(LateKeywords, calls[0], cuts=("two", "three"))
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, 3) as pipe, torch.no_grad():
        placed = dict(pipe.plan.anchors)
        for call in [*calls, *reversed(calls)]:
            args, kwargs = Kind(LateKeywords, call).data(7)
            torch.testing.assert_close(pipe(*args, **kwargs), eager(*args, **kwargs))
        assert dict(pipe.plan.anchors) == placed
