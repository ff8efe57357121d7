"""Tensors of every type, within and between stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, WORDS, Block
from tests.exact import Batch, Kind, vectors
from tests.kinds.check import assert_works, each


class Spectral(nn.Module):
    """Complex weights between two Fourier transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.cfloat) / 2)
        self.one, self.last = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.one(x)) * self.weight
        spectrum = torch.complex(spectrum.real.tanh(), spectrum.imag)
        return self.last(torch.fft.irfft(spectrum, n=x.shape[-1]))


class ComplexLayers(nn.Module):
    """A network over complex numbers from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH, dtype=torch.cfloat)
        self.two = nn.Linear(WIDTH, WIDTH, dtype=torch.cfloat)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        y = y * torch.sigmoid(y.abs())
        return self.two(y.conj() + y.real)


def complex_rows(rows: int) -> Batch:
    return (torch.randn(rows, WIDTH, dtype=torch.cfloat),), {}


class Whole(nn.Module):
    """Integers, truth values, shifts and remainders between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.one, self.two = Block(), Block()

    def forward(self, ids: Tensor, valid: Tensor) -> dict[str, Tensor]:
        buckets = ((ids << 1) ^ 5) % WORDS
        h = self.one(self.embed(buckets) * valid[..., None])
        winner = h.argmax(-1)
        counts = torch.where(valid, winner, torch.full_like(winner, -1)).cumsum(-1)
        keep = (counts > 2) & valid | ~valid
        h = self.two(h.masked_fill(keep[..., None], 0.5))
        bits = torch.stack([(winner >> n) & 1 for n in range(3)], -1).to(torch.int8)
        return {"h": h, "winner": winner, "keep": keep, "bits": bits, "any": keep.any(-1)}


def masked_ids(rows: int) -> Batch:
    return (torch.randint(0, WORDS, (rows, 4)), torch.rand(rows, 4) > 0.3), {}


class MixedPrecision(nn.Module):
    """Layers in other precisions than their neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Block()
        self.low = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.wide = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.low(self.one(x).bfloat16())
        y = F.softmax(y, dim=-1, dtype=torch.float32)
        return self.wide(y.to(torch.float64)).type_as(x) + y.type(torch.FloatTensor)


class NoRows(nn.Module):
    """Tensors without dimensions and without elements between the stages."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.one(x)
        scale = h.detach().abs().mean() + self.temperature
        nothing = h[:, :0]
        return self.two(torch.cat((nothing, h), -1) / scale), nothing


@dataclass
class Settings:
    scale: float
    width: int
    factors: tuple[float, ...]


class PythonValues(nn.Module):
    """Numbers of Python between the layers, out of shapes and settings."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()
        self.settings = Settings(0.5, WIDTH, (1.0, 2.0))

    def forward(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        h = self.one(x)
        scale = self.settings.scale * width**-0.5 + rows / max(rows, 1)
        places = [n / width for n in range(width)]
        h = h * torch.tensor(places, dtype=h.dtype, device=h.device) * scale
        size: Any = torch.Size((rows, 2, width // 2))
        return self.two(h.reshape(size).flatten(1)) + h.new_tensor(self.settings.factors).sum()


KINDS = {
    "spectral": Kind(Spectral, vectors(WIDTH)),
    "complex": Kind(ComplexLayers, complex_rows),
    "integers": Kind(Whole, masked_ids),
    "mixed precision": Kind(MixedPrecision, vectors(WIDTH)),
    "no dimensions": Kind(NoRows, vectors(WIDTH)),
    "numbers of Python": Kind(PythonValues, vectors(WIDTH)),
}


@each(KINDS)
def test_types_are_kept(kind: Kind) -> None:
    assert_works(kind)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_whole_models_in_other_precisions(dtype: torch.dtype) -> None:
    kind = Kind(
        lambda: nn.Sequential(Block(), nn.LayerNorm(WIDTH), Block(), Block()).to(dtype),
        lambda rows: ((torch.randn(rows, WIDTH, dtype=dtype),), {}),
    )
    assert_works(kind)
