"""The batch dimension of a call: which inputs have it, how many rows, and examples of other sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of an example call, and the dimension they lie along in every input leaf.

    `dims` is None for leaves that are given whole to each micro-batch.
    """

    size: int
    dims: tuple[int | None, ...]

    @property
    def recorded(self) -> int:
        """Rows to record with: a batch of one row would hide where sizes are broadcast."""
        return max(self.size, 2)

    @property
    def other(self) -> int:
        """Rows of the second recording: half as many, or twice as many if that is too few."""
        half = self.recorded // 2
        return half if half >= 2 and self.recorded % 2 == 0 else self.recorded * 2

    @property
    def third(self) -> int:
        """Rows of the recording that settles doubts: an odd number, unlike the others."""
        return max(self.recorded, self.other) + 1


def find_batch(leaves: Sequence[Any], dim: int = 0) -> Batch | None:
    """The size that most tensors have along a dimension (the first tensor decides a tie).

    With ``dim=1`` a matrix may have its rows along dimension 0: a padding mask of a model that takes
    sequences first. None if no input tensor has that many dimensions.
    """
    enough = max(dim + 1, 3 if dim else 1)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() >= enough]
    if not tensors and dim:
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > dim]
    if not tensors:
        return None
    size = Counter(leaf.shape[dim] for leaf in tensors).most_common(1)[0][0]
    return Batch(size, tuple(_rows(leaf, dim, size) for leaf in leaves))


def _rows(leaf: Any, dim: int, size: int) -> int | None:
    if not isinstance(leaf, torch.Tensor):
        return None
    along = (1, 0) if dim and leaf.dim() <= 2 else (dim,)
    return next((d for d in along if leaf.dim() > d and leaf.shape[d] == size), None)


def resized(leaves: Sequence[Any], batch: Batch, size: int) -> list[Any]:
    """The leaves with `size` rows: the first ones, repeated as often as needed."""
    return [_resize(leaf, dim, size) for leaf, dim in zip(leaves, batch.dims, strict=True)]


def _resize(leaf: Any, dim: int | None, size: int) -> Any:
    if dim is None or leaf.shape[dim] == size:
        return leaf
    rows = torch.arange(size, device=leaf.device) % leaf.shape[dim]
    return leaf.detach().index_select(dim, rows).requires_grad_(leaf.requires_grad)
