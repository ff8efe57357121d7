"""A batch cut into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxpipe.capture.batch import rows_along
from fxpipe.capture.signature import Layout, flatten
from fxpipe.capture.splits import split_dim
from fxpipe.ir.signature import CallSignature, InputLeaf
from fxpipe.ir.split import Split, SplitRule


@dataclass(frozen=True)
class MicroBatches:
    """The inputs of a call, per micro-batch.

    Attributes:
        rows: rows of each micro-batch, as `torch.Tensor.tensor_split` shares them out: the first ones
            may have one more.
        inputs: per micro-batch, a tensor for every placeholder of the signature. They are detached;
            ``requires_grad`` says whether the caller's tensor required grad.
    """

    rows: tuple[int, ...]
    inputs: tuple[tuple[Tensor, ...], ...]

    @property
    def count(self) -> int:
        """Number of micro-batches."""
        return len(self.rows)

    @property
    def weights(self) -> tuple[float, ...]:
        """The share of the rows that each micro-batch has."""
        total = sum(self.rows)
        return tuple(rows / total for rows in self.rows)


def scatter(signature: CallSignature, tensors: Sequence[Tensor], chunks: int) -> MicroBatches:
    """The inputs cut into min(`chunks`, rows) micro-batches.

    Args:
        signature: which inputs are batched, along which dimension.
        tensors: one per placeholder of the signature.
        chunks: micro-batches asked for. A call without batched inputs is one micro-batch.

    Raises:
        ValueError: if the inputs are not as many as recorded, if batched ones disagree on the
            number of rows, or if there are no rows.
    """
    leaves = signature.placeholders
    if len(leaves) != len(tensors):
        raise ValueError(f"{len(leaves)} tensors were recorded as inputs, {len(tensors)} are given")
    total = _rows(leaves, tensors)
    count = 1 if total is None else min(chunks, total)
    rows = (1,) if total is None else _shares(total, count)
    pieces = [
        _pieces(tensor, leaf.batch_dim, count) for leaf, tensor in zip(leaves, tensors, strict=True)
    ]
    return MicroBatches(rows, tuple(tuple(piece[m] for piece in pieces) for m in range(count)))


def _rows(leaves: Sequence[InputLeaf], tensors: Sequence[Tensor]) -> int | None:
    """Rows of the batch; None if no input is batched."""
    found: dict[str, int] = {}
    for leaf, tensor in zip(leaves, tensors, strict=True):
        if leaf.batch_dim is None:
            continue
        if leaf.batch_dim >= tensor.dim():
            raise ValueError(
                f"input {leaf.name!r} is cut along dimension {leaf.batch_dim}, "
                f"but has the shape {tuple(tensor.shape)}"
            )
        found[leaf.name] = tensor.size(leaf.batch_dim)
    if not found:
        return None
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{name}: {rows}" for name, rows in found.items())
        raise ValueError(
            f"the batched inputs have different numbers of rows ({listed}): "
            "micro_batches=[(args, kwargs, target), ...] takes what has no rows in common"
        )
    total = next(iter(found.values()))
    if total == 0:
        raise ValueError("the batch is empty: it has 0 rows")
    return total


def _shares(total: int, count: int) -> tuple[int, ...]:
    share, rest = divmod(total, count)
    return tuple(share + (m < rest) for m in range(count))


def _pieces(tensor: Tensor, batch_dim: int | None, count: int) -> Sequence[Tensor]:
    if batch_dim is None or count == 1:
        return (detached(tensor),) * count
    pieces = tensor.detach().tensor_split(count, batch_dim)
    if tensor.requires_grad:
        for piece in pieces:
            piece.requires_grad_()
    return pieces


def detached(tensor: Tensor) -> Tensor:
    """The tensor without its graph; it requires grad if the tensor does."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def rows_of(signature: CallSignature, tensors: Sequence[Tensor]) -> int:
    """Rows of a ready-made micro-batch; 1 if no input is batched.

    Raises:
        ValueError: if batched inputs disagree on the number of rows, or there are no rows.
    """
    found = _rows(signature.placeholders, tensors)
    return 1 if found is None else found


_Rules = Callable[[Layout], Sequence[SplitRule | None]]


def scatter_target(
    target: Any, rows: Sequence[int], *, along: int = 0, rules: _Rules | None = None
) -> list[Any]:
    """The target of each micro-batch: its tensors are cut like the batch.

    Tensors without dimensions and everything that is no tensor are given whole to each micro-batch.

    Args:
        target: any container.
        rows: of the micro-batches.
        along: the dimension along which the inputs have their rows; the target's tensors are cut
            along it, or along their first one if that has as many rows and this one has not.
        rules: what the user says for the leaves of a layout.

    Raises:
        ValueError: if a tensor has another number of rows than the batch.
    """
    leaves, layout = flatten(target)
    told = [None] * len(leaves) if rules is None else rules(layout)
    columns = [
        _target_pieces(leaf, rule, rows, along) for leaf, rule in zip(leaves, told, strict=True)
    ]
    return [layout.unflatten([column[m] for column in columns]) for m in range(len(rows))]


def _target_pieces(
    leaf: Any, rule: SplitRule | None, rows: Sequence[int], along: int
) -> Sequence[Any]:
    total = sum(rows)
    if isinstance(rule, Split):
        dim = split_dim(leaf, rule, "target")
    elif rule is None and isinstance(leaf, Tensor) and leaf.dim():
        dim = next((d for d in (along, 0) if rows_along(leaf, d, total) == d), None)
    else:
        return [leaf] * len(rows)
    if not isinstance(leaf, Tensor):
        return [leaf] * len(rows)
    if dim is None or leaf.shape[dim] != total:
        raise ValueError(
            f"a target of shape {tuple(leaf.shape)} cannot be cut like a batch of {total} rows: "
            f"its first dimension must be {total} (or name another: split={{'target': "
            "fxpipe.Split(dim)}, or fxpipe.Replicate() to give it whole to each micro-batch). "
            "Rows that have no common shape can be handed in as micro_batches=[(args, kwargs, target), "
            "...]"
        )
    return list(torch.split(leaf, list(rows), dim))
