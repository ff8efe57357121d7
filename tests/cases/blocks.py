"""Parts that the models of these tests are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.exact import Batch, Kind

WIDTH = 8
WORDS = 13


class Block(nn.Module):
    """A layer and an activation."""

    def __init__(self, given: int = WIDTH, made: int = WIDTH) -> None:
        super().__init__()
        self.layer = nn.Linear(given, made)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


def words(length: int = 5) -> Callable[[int], Batch]:
    """Batches of token numbers ``[rows, length]``."""
    return lambda rows: ((torch.randint(0, WORDS, (rows, length)),), {})


def images(channels: int = 2, size: int = 8) -> Callable[[int], Batch]:
    """Batches of pictures ``[rows, channels, size, size]``."""
    return lambda rows: ((torch.randn(rows, channels, size, size),), {})


def each(kinds: Mapping[str, Kind]) -> Any:
    """A test per kind (`name`) and number of `stages`: two, and three where it has cuts for them."""
    found = [(name, n) for name, kind in kinds.items() for n in (2, 3) if n - 1 <= len(kind.cuts)]
    return pytest.mark.parametrize(("name", "stages"), found)
