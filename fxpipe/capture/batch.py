"""The batch dimension of a call: which inputs have it, how many rows, and examples of other sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fxpipe.capture.signature import Layout
    from fxpipe.ir.capture import Capture
    from fxpipe.ir.signature import InputLeaf


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
        """Rows of the second recording: half as many, or twice as many if that is too few.

        Fewer, because a micro-batch may be smaller than the example, and code may decide on that.
        """
        half = (self.recorded + 1) // 2
        return half if half >= 2 and half < self.recorded else self.recorded * 2

    @property
    def third(self) -> int:
        """Rows of the recording that settles doubts: an odd number, unlike the others."""
        return max(self.recorded, self.other) + 1


def find_batch(
    leaves: Sequence[Any], dim: int = 0, taken: Collection[tuple[int, int]] = ()
) -> Batch | None:
    """The size that most tensors have along a dimension (the first tensor decides a tie).

    A size of 1 counts where the first tensor has it: others may be broadcast.
    With ``dim=1`` a matrix may have its rows along dimension 0: a padding mask of a model that takes
    sequences first. None if no input tensor has that many dimensions. `taken` holds dimensions (leaf,
    dimension) that have no rows.
    """
    leaves = [None if (at, dim) in taken else leaf for at, leaf in enumerate(leaves)]
    enough = max(dim + 1, 3 if dim else 1)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() >= enough]
    if not tensors and dim:
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > dim]
    if not tensors:
        return None
    sizes = Counter(leaf.shape[dim] for leaf in tensors)
    if tensors[0].shape[dim] > 1:  # tables and masks of size 1 are spread over the rows
        del sizes[1]
    size = sizes.most_common(1)[0][0]
    return Batch(size, tuple(rows_along(leaf, dim, size) for leaf in leaves))


def rows_along(leaf: Any, dim: int, size: int) -> int | None:
    """Where a leaf has `size` rows: along `dim`; a matrix beside sequences first, along 0 too."""
    if not isinstance(leaf, torch.Tensor):
        return None
    along = (1, 0) if dim and leaf.dim() <= 2 else (dim,)
    return next((d for d in along if leaf.dim() > d and leaf.shape[d] == size), None)


def batch_of(
    leaves: Sequence[Any],
    layout: Layout,
    like: Capture | None = None,
    taken: Collection[tuple[int, int]] = (),
) -> Batch | None:
    """The batch of a call, cut as in an earlier capture where its arguments have the same structure.

    An input that was given whole stays whole, also if it happens to have as many rows as the batch.
    Only what may be spread over the rows is looked at anew: an input of one row is given whole to
    several, and one that had a single row, or other dimensions, may have all rows now.

    Args:
        leaves: of ``(args, kwargs)``, as `flatten` gives them.
        layout: theirs.
        like: a capture of the model; None, or a capture of another structure: the batch is guessed,
            along the dimension where the capture has its rows.
        taken: dimensions (leaf, dimension) that have no rows.

    Returns:
        None if no input has rows. `Batch.size` is the size that most inputs with rows have.
    """
    along = 0 if like is None else batch_dimension(like)
    guessed = find_batch(leaves, along, taken)
    if like is None or like.signature.input != layout:
        return guessed
    known = like.signature.inputs
    pairs = tuple(zip(known, leaves, strict=True))
    if any((leaf.spec is None) == isinstance(given, torch.Tensor) for leaf, given in pairs):
        return guessed
    dims = [_fitting(leaf.batch_dim, given) for leaf, given in pairs]
    sizes = [leaf.shape[d] for leaf, d in zip(leaves, dims, strict=True) if d is not None]
    if not sizes:
        return guessed if any(leaf.batch_dim is not None for leaf in known) else None
    size = Counter(sizes).most_common(1)[0][0]
    return Batch(size, tuple(map(partial(_dim_like, size, along), known, leaves, dims)))


def _fitting(dim: int | None, given: Any) -> int | None:
    return dim if dim is not None and given.dim() > dim else None


def _dim_like(size: int, along: int, known: InputLeaf, given: Any, dim: int | None) -> int | None:
    """The batch dimension of an input; `dim` is that of the earlier capture, if it fits."""
    if known.spec is None:
        return None
    if dim is not None:
        return None if given.shape[dim] == 1 < size else dim
    shape = known.spec.shape
    is_spread = len(shape) != given.dim() or (along < len(shape) and shape[along] == 1)
    return rows_along(given, along, size) if is_spread and shape != given.shape else None


def given_batch(leaves: Sequence[Any], dims: Sequence[int | None]) -> Batch | None:
    """The batch of a call whose batch dimensions are given; None if no leaf has one.

    Raises:
        ValueError: if they do not fit the leaves, or the inputs disagree on the number of rows.
    """
    if len(dims) != len(leaves):
        raise ValueError(f"{len(dims)} batch dimensions are given for {len(leaves)} inputs")
    sizes: list[int] = []
    for at, (leaf, dim) in enumerate(zip(leaves, dims, strict=True)):
        if dim is None:
            continue
        if not isinstance(leaf, torch.Tensor) or not 0 <= dim < leaf.dim():
            raise ValueError(f"input {at} has no dimension {dim} for its rows")
        sizes.append(leaf.shape[dim])
    if len(set(sizes)) > 1:
        raise ValueError(f"the batched inputs have different numbers of rows: {sizes}")
    return Batch(sizes[0], tuple(dims)) if sizes else None


def batch_dimension(capture: Capture) -> int:
    """The dimension along which inputs of a capture have their rows.

    Sequences tell it (the first one decides a tie), else the first matrix: beside them a mask or a
    transposed table may have its rows elsewhere.
    """
    found = [
        (leaf.batch_dim, len(leaf.spec.shape))
        for leaf in capture.signature.inputs
        if leaf.batch_dim is not None and leaf.spec is not None
    ]
    if of_sequences := [dim for dim, dims in found if dims > 2]:
        return Counter(of_sequences).most_common(1)[0][0]
    return next((dim for dim, dims in found if dims == 2), 0)


def resized(leaves: Sequence[Any], batch: Batch, size: int) -> list[Any]:
    """The leaves with `size` rows: the first ones, repeated as often as needed."""
    return [_resize(leaf, dim, size) for leaf, dim in zip(leaves, batch.dims, strict=True)]


def _resize(leaf: Any, dim: int | None, size: int) -> Any:
    if dim is None or leaf.shape[dim] == size:
        return leaf
    rows = torch.arange(size, device=leaf.device) % leaf.shape[dim]
    return leaf.detach().index_select(dim, rows).requires_grad_(leaf.requires_grad)


def repeated(leaves: Sequence[Any], batch: Batch, row: int, size: int) -> list[Any]:
    """The leaves with `size` rows that are all one row of theirs."""
    one = [
        leaf if dim is None else leaf.detach().narrow(dim, row % leaf.shape[dim], 1)
        for leaf, dim in zip(leaves, batch.dims, strict=True)
    ]
    many = resized(one, batch, size)
    for leaf, made in zip(leaves, many, strict=True):
        if made is not leaf:
            made.requires_grad_(leaf.requires_grad)
    return many
