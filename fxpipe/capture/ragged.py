"""Lists of sequences of several lengths: to guess rows in them would cut some along time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fxpipe.capture.batch import Batch
from fxpipe.capture.containers import Shape
from fxpipe.capture.signature import Branch, Layout, Tree
from fxpipe.capture.splits import Splits
from fxpipe.ir.split import SplitRule

_LISTS = (Shape.LIST, Shape.LIST_SUBCLASS)


def without_ragged(
    batch: Batch | None, leaves: Sequence[Any], layout: Layout, splits: Splits | None = None
) -> Batch | None:
    """A batch of which such lists have no rows; lists with a rule of the user's are left as they are.

    Args:
        batch: as guessed.
        leaves: of ``(args, kwargs)``, put together by `layout`.
    """
    if batch is None:
        return None
    found = {at for held in ragged_lists(batch, leaves, layout, splits) for at in held}
    dims = tuple(None if at in found else dim for at, dim in enumerate(batch.dims))
    if not found:
        return batch
    sizes = [leaves[at].shape[dim] for at, dim in enumerate(dims) if dim is not None]
    return Batch(sizes[0], dims) if sizes else None


def ragged_lists(
    batch: Batch, leaves: Sequence[Any], layout: Layout, splits: Splits | None = None
) -> list[tuple[int, ...]]:
    """The leaves of each list that would be cut along a dimension of which they have different sizes.

    They are alike but for one size: if they had rows of a batch, they would have as many.
    """
    return [
        held
        for held in _lists(layout.tree)
        if _is_ragged(batch, leaves, held) and not any(_rules(splits, layout, held))
    ]


def refuse_ragged(leaves: Sequence[Any], names: Sequence[str], held: Sequence[int]) -> None:
    """Refuse to cut a batch with such a list.

    Raises:
        ValueError: always.
    """
    shapes = ", ".join(f"{names[at]}: {tuple(leaves[at].shape)}" for at in held)
    raise ValueError(
        f"the tensors of a list have different sizes ({shapes}): they may be sequences of one batch, "
        "which has no rows to cut\n  What to do: hand in micro_batches=[(args, kwargs, target), ...], "
        "each with a list of its own; or say what is cut, with split={'name': fxpipe.Split(dim)} or "
        "fxpipe.Replicate()"
    )


def _rules(splits: Splits | None, layout: Layout, held: Sequence[int]) -> list[SplitRule | None]:
    if not splits:
        return []
    rules = splits.of_call(layout)
    return [rules[at] for at in held]


def _is_ragged(batch: Batch, leaves: Sequence[Any], held: Sequence[int]) -> bool:
    """Whether a list's tensors would be cut along a dimension in which they differ, and in no other."""
    dims = {dim for at in held if (dim := batch.dims[at]) is not None}
    if len(dims) != 1:
        return False
    (dim,) = dims
    if len({_without(leaves[at], dim) for at in held}) > 1:
        return False
    return len({leaves[at].shape[dim] for at in held}) > 1


def _lists(tree: Tree) -> Iterator[tuple[int, ...]]:
    """The positions of the leaves of every list that holds nothing else."""
    if isinstance(tree, int):
        return
    held = tuple(child for child in tree.children if isinstance(child, int))
    if tree.parts.shape in _LISTS and len(held) == len(tree.children) > 1:
        yield held
    for child in tree.children:
        if isinstance(child, Branch):
            yield from _lists(child)


def _without(leaf: Any, dim: int) -> object:
    """What must be the same of tensors that are alike but for their sizes along a dimension."""
    if not isinstance(leaf, torch.Tensor):
        return type(leaf)
    return leaf.dim(), leaf.dtype, (*leaf.shape[:dim], *leaf.shape[dim + 1 :])
