"""Caches, modules and hooks made on the way, NumPy: Python around the tensors of a forward."""

from __future__ import annotations

import copy
import functools
import logging
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.cases.blocks import WIDTH, Block
from tests.exact import Kind, vectors
from tests.kinds.check import assert_works, each
from tests.kinds.checked import ChecksValues


class Two(nn.Module):
    """Two blocks, and something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def between(self, x: Tensor) -> Tensor:
        raise AssertionError

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.between(self.one(x)))


@functools.cache
def cached_table(size: int) -> Tensor:
    return torch.arange(size).float() / size


TABLES: dict[tuple[int, torch.dtype], Tensor] = {}


class CachesTables(Two):
    """Tables made once per process, per object and per class."""

    @functools.lru_cache(maxsize=8)  # noqa: B019 - what users write
    def table(self, size: int) -> Tensor:
        return torch.ones(size) * size

    @functools.cached_property
    def halves(self) -> Tensor:
        return torch.full((WIDTH,), 0.5)

    def between(self, x: Tensor) -> Tensor:
        key = (x.shape[-1], x.dtype)
        if key not in TABLES:
            TABLES[key] = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype)
        x = x * cached_table(x.shape[-1]) + TABLES[key]
        return x * self.table(x.shape[-1]) + self.halves


class MakesModules(Two):
    """Layers without parameters are made where they are used."""

    def between(self, x: Tensor) -> Tensor:
        return nn.Softplus()(nn.LayerNorm(WIDTH, elementwise_affine=False)(x))


class HooksOnTheWay(Two):
    """A hook that is set for one call, to get at a value inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Block(), Block())

    def between(self, x: Tensor) -> Tensor:
        found: list[Tensor] = []
        handle = self.inner[0].register_forward_hook(lambda m, args, output: found.append(output))
        try:
            return self.inner(x) + found[0]
        finally:
            handle.remove()


class UsesNumpy(Two):
    """Numbers and tables of NumPy."""

    def between(self, x: Tensor) -> Tensor:
        table = np.sqrt(np.arange(1, WIDTH + 1, dtype=np.float32))
        scale = np.float64(x.shape[-1]) ** -0.5
        return x * torch.from_numpy(table) * scale * np.float32(2.0) + np.int64(1)


class TalksAboutValues(Two):
    """Assertions, logs and texts of tensors."""

    def between(self, x: Tensor) -> Tensor:
        torch._assert(x.shape[-1] == WIDTH, "the width")
        logging.getLogger(__name__).debug("%s %r", x, x.dtype)
        assert not torch.jit.is_scripting()
        assert str(x.shape)
        assert repr(x)
        return x


class HoldsTensors(Two):
    """Tensors that are no buffers, in attributes and containers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.linspace(0, 1, WIDTH)
        self.tables = {"a": [torch.ones(1), torch.zeros(WIDTH)]}

    def between(self, x: Tensor) -> Tensor:
        return x * self.table + self.tables["a"][0] + self.tables["a"][1]


class OwnCall(Two):
    """A module whose ``__call__`` takes more than its forward."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def __call__(self, x: Tensor, factor: float) -> Tensor:
            return super().__call__(x) * factor

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.layer(x))

    def __init__(self) -> None:
        super().__init__()
        self.scaled = self.Scaled()

    def between(self, x: Tensor) -> Tensor:
        return self.scaled(x, 3.0)


class Tokens(nn.Module):
    """A learned token in front of every sequence, and positions up to the length."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 9, WIDTH))
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        token = self.token.expand(x.shape[0], -1, -1)
        x = torch.cat((token, x), dim=1) + self.places[:, : x.shape[1] + 1]
        return self.two(self.one(x))[:, 0]


# ---- what only a module that stays whole can do --------------------------------------------------


class Inside(nn.Module):
    """Three blocks, the one in the middle with a habit."""

    def __init__(self, middle: type[nn.Module]) -> None:
        super().__init__()
        self.one, self.middle, self.two = Block(), middle(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.middle(self.one(x)))


class SwitchesModes(nn.Module):
    """A part of it always runs in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.norm.eval()
        y = self.norm(self.layer(x))
        self.norm.train(self.training)
        return y


class Freezes(nn.Module):
    """Its weights are fixed for one of two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.requires_grad_(False)
        fixed = self.layer(x)
        self.layer.requires_grad_(True)
        return fixed + self.layer(x.detach())


class CopiesItself(nn.Module):
    """Runs a copy of a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            other = copy.deepcopy(self.layer)(x)
        return self.layer(x) - other / 2


class DrawsInPython(nn.Module):
    """Draws from ``random``, and no recording can tell that nothing comes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        assert random.gauss() < math.inf
        return self.layer(x)


class RowByRow(nn.Module):
    """As many calls as there are rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(row) for row in x])


class DecidesOnValues(nn.Module):
    """Takes another way where a number is large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y / 100 if y.abs().max() > 100 else y


class Seeds(nn.Module):
    """Draws the same numbers at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return self.layer(x) + torch.randn_like(x)


class SeedsByChance(Seeds):
    """Draws numbers that nothing decides."""

    def forward(self, x: Tensor) -> Tensor:
        torch.seed()
        return self.layer(x) + torch.randn_like(x)


WHOLE = (SwitchesModes, Freezes, CopiesItself, DrawsInPython, RowByRow, DecidesOnValues)
KINDS = {
    cls.__name__: Kind(cls, vectors(WIDTH), tied=None)
    for cls in (
        CachesTables,
        MakesModules,
        HooksOnTheWay,
        UsesNumpy,
        TalksAboutValues,
        HoldsTensors,
        OwnCall,
        ChecksValues,
    )
} | {
    "Tokens": Kind(Tokens, vectors(5, WIDTH)),
    **{cls.__name__: Kind(lambda cls=cls: Inside(cls), vectors(WIDTH)) for cls in WHOLE},
    "Seeds": Kind(lambda: Inside(Seeds), vectors(WIDTH), random=True, random_in_eval=True),
}


@each(KINDS)
def test_python_around_tensors(kind: Kind) -> None:
    assert_works(kind)


@pytest.mark.parametrize("cls", [*WHOLE, Seeds])
def test_what_stays_whole_is_told(cls: type[nn.Module]) -> None:
    torch.manual_seed(0)
    capture = fxpipe.trace(Inside(cls), (torch.randn(4, WIDTH),))
    (leaf,) = capture.leaves
    assert leaf.path == "middle"
    assert leaf.reason


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (SwitchesModes, "it switches modules between training and evaluation mode"),
        (Freezes, "it switches requires_grad of a parameter"),
        (DrawsInPython, "draws from random"),
        (DecidesOnValues, "depends on values of tensors"),
        (Seeds, "it seeds torch's random generator, which no graph node shows"),
        (SeedsByChance, "it seeds torch's random generator by chance"),
        (lambda: Inside(SeedsByChance), "it seeds torch's random generator by chance"),
    ],
)
def test_the_model_itself_may_not_and_is_told_where(
    cls: Callable[[], nn.Module], reason: str
) -> None:
    with pytest.raises(fxpipe.CaptureError, match=reason) as caught:
        fxpipe.trace(cls(), (torch.randn(4, WIDTH),))
    message = str(caught.value)
    assert "test_python.py" in message
    assert "What to do" in message


def test_a_check_that_fails_in_a_stage_is_told() -> None:
    torch.manual_seed(0)
    kind = Kind(ChecksValues, vectors(WIDTH))
    with (
        kind.pipe(kind.model(), 2) as pipe,
        pytest.raises(ValueError, match="a check of the model") as e,
    ):
        pipe.step(torch.full((6, WIDTH), float("inf")), loss_fn=lambda y, _: y.mean())
    assert "checked.py" in str(e.value)
