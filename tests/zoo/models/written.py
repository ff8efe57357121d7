"""Models written here, small and readable: those of `examples.models` that others do not ship."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import Entry

WORDS = 40


def _ids(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(1, WORDS, shape, generator=g)


def _gpt(dropout: float = 0.0) -> nn.Module:
    from examples.models.gpt import GPT

    return GPT(WORDS, 16, depth=4, width=16, heads=2, dropout=dropout)


def _gpt_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    return (_ids(g, rows, 10), _ids(g, rows, 10)), {}


def _second(output: tuple[Tensor, Tensor]) -> Tensor:
    return output[1]


def _dlrm() -> nn.Module:
    from examples.models.dlrm import DLRM

    return DLRM([30, 20, 50, 10], dense=5, width=8, bottom=(16,), top=(32, 16))


def _dlrm_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, 5, generator=g)
    bags = zip((30, 20, 50, 10), (1, 4, 2, 3), strict=True)
    sparse = [torch.randint(0, size, (rows, count), generator=g) for size, count in bags]
    return (dense, sparse), {}


def _tagger(dropout: float = 0.0) -> nn.Module:
    from examples.models.tagger import Tagger

    return Tagger(WORDS, 5, width=8, layers=2, dropout=dropout)


def _tagger_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    return (_ids(g, rows, 9), torch.randint(1, 10, (rows,), generator=g)), {}


def _gnmt(dropout: float = 0.0) -> nn.Module:
    from examples.models.gnmt import GNMT

    return GNMT(WORDS, width=8, layers=3, dropout=dropout)


def _gnmt_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 10, (rows,), generator=g)
    return (_ids(g, rows, 9), lengths, _ids(g, rows, 7)), {}


ENTRIES = (
    Entry("nanoGPT-like", "own", _gpt, _gpt_batch, loss=_second, with_dropout=partial(_gpt, 0.2)),
    Entry("DLRM-like", "own", _dlrm, _dlrm_batch),
    Entry("LSTM tagger, packed", "own", _tagger, _tagger_batch, with_dropout=partial(_tagger, 0.2)),
    Entry("GNMT-like", "own", _gnmt, _gnmt_batch, with_dropout=partial(_gnmt, 0.2)),
)
