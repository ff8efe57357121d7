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


def find_batch(leaves: Sequence[Any]) -> Batch | None:
    """The size that most tensors have along dimension 0 (the first tensor decides a tie).

    None if no input tensor has a dimension.
    """
    sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if not sizes:
        return None
    size = Counter(sizes).most_common(1)[0][0]
    return Batch(size, tuple(0 if _has_rows(leaf, size) else None for leaf in leaves))


def _has_rows(leaf: Any, size: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == size


def resized(leaves: Sequence[Any], batch: Batch, size: int) -> list[Any]:
    """The leaves with `size` rows: the first ones, repeated as often as needed."""
    return [_resize(leaf, dim, size) for leaf, dim in zip(leaves, batch.dims, strict=True)]


def _resize(leaf: Any, dim: int | None, size: int) -> Any:
    if dim is None or leaf.shape[dim] == size:
        return leaf
    rows = torch.arange(size, device=leaf.device) % leaf.shape[dim]
    return leaf.detach().index_select(dim, rows).requires_grad_(leaf.requires_grad)
