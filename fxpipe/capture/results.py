"""Along which dimension the results of micro-batches are joined."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fxpipe.ir.signature import OutputLeaf


def output_leaves(
    first: Sequence[Any], second: Sequence[Any] | None, sizes: tuple[int, int]
) -> Iterator[OutputLeaf]:
    """The output leaves of two recordings with `sizes` rows, compared."""
    for position, leaf in enumerate(first):
        if not isinstance(leaf, torch.Tensor) or second is None:
            yield OutputLeaf(None)
            continue
        dim = _batch_dim(position, leaf.shape, second[position].shape, sizes)
        yield OutputLeaf(dim, leaf.dim())


def _batch_dim(
    position: int, one: Sequence[int], two: Sequence[int], sizes: tuple[int, int]
) -> int | None:
    follows = [dim for dim, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    if len(follows) > 1:
        warnings.warn(
            f"result {position} has shape {tuple(one)} for {sizes[0]} rows and {tuple(two)} for "
            f"{sizes[1]}: each of its rows belongs to all rows of a micro-batch. It is not joined: "
            "the pipeline's result is a list with that of each micro-batch",
            stacklevel=2,
        )
    return follows[0] if len(follows) == 1 else None
