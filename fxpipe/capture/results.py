"""Along which dimension the results of micro-batches are joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fxpipe.errors import CaptureError
from fxpipe.ir.signature import OutputLeaf


def output_leaves(
    first: Sequence[Any], second: Sequence[Any] | None, sizes: tuple[int, int]
) -> Iterator[OutputLeaf]:
    """The output leaves of two recordings with `sizes` rows, compared.

    Raises:
        CaptureError: if a result follows the batch size along two dimensions.
    """
    for position, leaf in enumerate(first):
        if not isinstance(leaf, torch.Tensor) or second is None:
            yield OutputLeaf(None, isinstance(leaf, torch.Tensor))
            continue
        yield OutputLeaf(_batch_dim(position, leaf.shape, second[position].shape, sizes), True)


def _batch_dim(
    position: int, one: Sequence[int], two: Sequence[int], sizes: tuple[int, int]
) -> int | None:
    follows = [dim for dim, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    if len(follows) > 1:
        raise CaptureError(
            f"result {position} has shape {tuple(one)} for {sizes[0]} rows and {tuple(two)} for "
            f"{sizes[1]}: it follows the batch size along dimensions {follows}, so the results of "
            "micro-batches cannot be joined. What to do: return something with one row per input row"
        )
    return follows[0] if follows else None
