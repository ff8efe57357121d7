"""Ways of writing a forward: decorators, keywords, generators, dispatch, methods."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, Block
from tests.exact import Batch, Kind, vectors
from tests.kinds.check import assert_works, each


def scaled(factor: float) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Tensor:
            return function(*args, **kwargs) * factor

        return wrapped

    return decorate


class checked:  # noqa: N801 - a decorator
    """A decorator that is an object, and takes options out of the keywords."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        return functools.partial(self.__call__, instance)

    def __call__(self, instance: Any, x: Tensor, **options: Any) -> Any:
        as_tuple = options.pop("as_tuple", False)
        made = self.function(instance, x, **options)
        return (made,) if as_tuple else made


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    @scaled(0.5)
    @torch.no_grad()
    def gate(self, x: Tensor) -> Tensor:
        return self.one(x).sigmoid()

    @checked
    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        return self.two(self.one(x) + shift) * self.gate(x)


class Keywords(nn.Module):
    """Options collected, changed and passed on."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Block()

        def forward(self, x: Tensor, bias: Tensor | None = None, *rest: Any, **more: Any) -> Tensor:
            if more.get("twice", False):
                x = self.inner(x)
            x = self.inner(x)
            return x if bias is None else x + bias

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, x: Tensor, /, *, bias: Tensor | None = None, **options: Any) -> Tensor:
        defaults = {"twice": True, "unused": object()}
        for n, layer in enumerate(self.layers):
            x = layer(x, bias=bias if n == 1 else None, **{**defaults, **options})
        return x


class Generators(nn.Module):
    """Comprehensions, generators, `zip`, `map`, `reduce` and stars over modules and tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.parts = nn.ModuleDict({name: Block(2, 2) for name in ("a", "b", "c", "d")})

    def states(self, x: Tensor) -> Iterator[Tensor]:
        for block in self.blocks:
            x = block(x)
            yield x

    def forward(self, x: Tensor) -> Tensor:
        states = [*self.states(x)]
        total = functools.reduce(torch.add, states)
        pieces = total.split(2, dim=-1)
        made = {n: part(p) for (n, part), p in zip(self.parts.items(), pieces, strict=True)}
        first, *others = (made[name] for name in sorted(made, reverse=True))
        largest = max(others, key=lambda piece: piece.shape[-1])
        return (
            torch.cat([first, *others], dim=-1) + largest.repeat(1, 4) + sum(map(torch.sin, states))
        )


class Method(Enum):
    MEAN = "mean"
    MAX = "max"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Config:
    method: Method = Method.MEAN
    level: Level = Level.HIGH
    widths: tuple[int, ...] = (WIDTH, WIDTH)
    options: dict[str, Any] = field(default_factory=lambda: {"act": "tanh"}, hash=False)


class Configured(nn.Module):
    """Objects and enums that say what to do: held by the model and handed by the caller."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.settings = SimpleNamespace(scale=2.0, names=["one", "two"])
        self.one, self.two = Block(), Block()
        self.acts = nn.ModuleDict({"tanh": nn.Tanh(), "gelu": nn.GELU()})

    def forward(
        self, x: Tensor, method: Method, config: Config | None = None, act: str = "tanh"
    ) -> Tensor:
        config = config or self.config
        for name in self.settings.names[: config.level]:
            x = getattr(self, name)(x) * self.settings.scale
        match config.options["act"], act:
            case "tanh", str(chosen):
                x = self.acts[chosen](x)
            case _:
                x = x.neg()
        match method:
            case Method.MEAN:
                return x - x.mean(-1, keepdim=True)
            case Method.MAX:
                return x - x.amax(-1, keepdim=True)


def configured(rows: int) -> Batch:
    return (torch.randn(rows, WIDTH), Method.MAX), {
        "act": "gelu",
        "config": Config(level=Level.LOW),
    }


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x)

    @property
    def bias(self) -> Tensor:
        return self.one.layer.bias

    @classmethod
    def shift(cls, x: Tensor) -> Tensor:
        return x.roll(1, -1)

    @staticmethod
    def square(x: Tensor) -> Tensor:
        return x * x


class Derived(Base):
    """`super().forward`, properties, class methods, a method that calls itself, `__call__`."""

    def __init__(self) -> None:
        super().__init__()
        self.two = Block()
        self.act: Callable[[Tensor], Tensor] = F.gelu
        self.cached = functools.partial(F.layer_norm, normalized_shape=(WIDTH,))

    def again(self, x: Tensor, times: int) -> Tensor:
        return x if not times else self.again(self.two(x), times - 1)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x) + self.bias
        y = self.cached(self.again(self.shift(y), 2))
        return self.act(self.square(y)) * (lambda t: t + 1)(y)


class Encoder(nn.Module):
    """Called by other methods than forward."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = Block(WIDTH, 4), Block(4, WIDTH)

    def encode(self, x: Tensor) -> Tensor:
        return self.down(x)

    def decode(self, z: Tensor) -> Tensor:
        return self.up(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x))


class OtherMethods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codec, self.between = Encoder(), Block(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.codec.decode(self.between(self.codec.encode(x))) + self.codec(x)


class Callables(nn.Module):
    """Functions and lambdas held in attributes and containers; a forward set on the instance."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.steps: Sequence[Callable[[Tensor], Tensor]] = [
            self.one,
            torch.sin,
            lambda t: self.two(t),
        ]
        self.forward = self.run  # type: ignore[method-assign]

    def run(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


class Tries(nn.Module):
    """Exceptions, context managers, `hasattr`, `isinstance`, f-strings, walrus."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    @contextlib.contextmanager
    def doubled(self, x: Tensor) -> Iterator[Tensor]:
        yield x * 2

    def forward(self, x: Tensor) -> Tensor:
        try:
            x.view(x.shape[0], 3, -1)
        except RuntimeError:
            x = self.one(x)
        with self.doubled(x) as y, contextlib.suppress(KeyError):
            y = self.two(y)
            {}[f"{y.shape[-1]}"]
        if hasattr(self, "two") and isinstance(y, Tensor) and (width := y.size(-1)) > 4:
            y = y[..., : width // 2].repeat_interleave(2, -1)
        return y


class Operators(nn.Module):
    """Python's operators and built-ins on tensors, both ways round, and indices of all forms."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        h = 1 - h + abs(-h) ** 2 / (2 + h * h) + h.detach() // 1 + h % 3 + 2**h
        h = h @ torch.eye(WIDTH) + divmod(7, 4)[1] * (h > 0) - (~(h < 0)).float() + round(2.6)
        h = h[..., None].squeeze(-1)[:, [0, 2, 1, *range(3, WIDTH)]][:, torch.arange(WIDTH).flip(0)]
        h = (
            h
            + h[:, -1:] * h[:, 0, None]
            + pow(h.abs() + 1, 0.5)
            + sum(h.unbind(1))[:, None] / len(h[0])
        )
        a, b = h[:, : WIDTH // 2], h[:, WIDTH // 2 :]
        a = +a & a if a.dtype == torch.bool else a
        return self.two(torch.cat((b, a), dim=-1)) + torch.tensor([1.0] * WIDTH) + h.new_ones(1)


class Dispatch(nn.Module):
    """Which submodule runs is in the arguments: by name, by number, by type."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"small": Block(), "large": nn.Sequential(Block(), Block())})
        self.experts = nn.ModuleList(Block() for _ in range(3))
        self.weights = nn.ParameterDict({"small": torch.ones(WIDTH), "large": torch.zeros(WIDTH)})
        self.biases = nn.ParameterList([torch.zeros(WIDTH) for _ in range(3)])

    def forward(self, x: Tensor, task: str, order: Sequence[int] = (0, 2)) -> Tensor:
        for n in order:
            x = self.experts[n](x) + self.biases[n]
        return self.heads[task](x * self.weights[task])


class HandsModules(nn.Module):
    """Layers that are handed a module of the model's, which all of them call."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor, places: nn.Module, at: Tensor) -> Tensor:
            return self.block(x) + places(at)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(4))
        self.places = nn.Embedding(3, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(len(x), device=x.device) % 3
        for layer in self.layers:
            x = layer(x, self.places, at)
        return x


class Applies(nn.Module):
    """Calls what it is handed."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        return self.own(function(x)) + x


class HandsFunctions(nn.Module):
    """Functions that call modules: a partial, a bound forward, a method, a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.each = nn.ModuleList(Applies() for _ in range(4))

    def twice(self, x: Tensor) -> Tensor:
        return self.one(x) * 2

    def forward(self, x: Tensor) -> Tensor:
        x, one = self.one(x), self.one
        x = self.each[0](x, functools.partial(one))
        x = self.each[1](x, self.one.forward)
        x = self.each[2](x, self.twice)
        return self.two(self.each[3](x, lambda y: one(y)))


KINDS = {
    "decorators": Kind(Decorated, vectors(WIDTH, as_tuple=True, shift=0.5), tied=None),
    "keywords": Kind(
        Keywords,
        lambda rows: ((torch.randn(rows, WIDTH),), {"bias": torch.randn(WIDTH), "more": 1}),
        tied=None,
    ),
    "generators": Kind(Generators, vectors(WIDTH)),
    "configurations": Kind(lambda: Configured(Config()), configured),
    "inheritance": Kind(Derived, vectors(WIDTH), tied=None),
    "other methods": Kind(OtherMethods, vectors(WIDTH), tied=None),
    "callables": Kind(Callables, vectors(WIDTH)),
    "exceptions": Kind(Tries, vectors(WIDTH)),
    "modules as arguments": Kind(HandsModules, vectors(WIDTH), tied=None),
    "functions as arguments": Kind(HandsFunctions, vectors(WIDTH), tied=None),
    "operators": Kind(Operators, vectors(WIDTH)),
    "dispatch": Kind(Dispatch, vectors(WIDTH, task="large")),
    "dispatch by number": Kind(Dispatch, vectors(WIDTH, task="small", order=[1, 1, 0]), tied=None),
}


@each(KINDS)
def test_forwards_are_followed(kind: Kind) -> None:
    assert_works(kind)
