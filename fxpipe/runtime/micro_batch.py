"""A batch cut into micro-batches, and their results joined again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fxpipe.ir.signature import CallSignature, InputLeaf, OutputLeaf


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
        raise ValueError(f"the batched inputs have different numbers of rows ({listed})")
    total = next(iter(found.values()))
    if total == 0:
        raise ValueError("the batch is empty: it has 0 rows")
    return total


def _shares(total: int, count: int) -> tuple[int, ...]:
    share, rest = divmod(total, count)
    return tuple(share + (m < rest) for m in range(count))


def _pieces(tensor: Tensor, batch_dim: int | None, count: int) -> Sequence[Tensor]:
    detached = tensor.detach()
    if batch_dim is None or count == 1:
        pieces: Sequence[Tensor] = (detached,) * count
    else:
        pieces = detached.tensor_split(count, batch_dim)
    if tensor.requires_grad:
        for piece in pieces:
            piece.requires_grad_()
    return pieces


def scatter_target(target: Any, rows: Sequence[int]) -> list[Any]:
    """The target of each micro-batch: tensors are cut along their first dimension like the batch.

    Tensors without dimensions and everything that is no tensor are given whole to each micro-batch.

    Raises:
        ValueError: if a tensor has another number of rows than the batch.
    """
    leaves, structure = pytree.tree_flatten(target)
    total = sum(rows)
    pieces = []
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            pieces.append([leaf] * len(rows))
        elif leaf.size(0) != total:
            raise ValueError(
                f"a target of shape {tuple(leaf.shape)} cannot be cut like a batch of {total} rows: "
                f"its first dimension must be {total}"
            )
        else:
            pieces.append(list(torch.split(leaf, list(rows))))
    return [pytree.tree_unflatten([p[m] for p in pieces], structure) for m in range(len(rows))]


@dataclass(frozen=True)
class Joined:
    """One output leaf of the whole batch: its value, and how gradients go back to the micro-batches."""

    value: Any
    kind: str
    """``"rows"``: joined along the batch dimension; ``"mean"``; ``"same"``; ``"each"``: a list."""
    sizes: tuple[int, ...] = ()
    """Of the micro-batches' pieces along the batch dimension."""


def gather(
    leaf: OutputLeaf, pieces: Sequence[Any], weights: Sequence[float], name: str = "a result"
) -> Joined:
    """One output leaf of the whole batch from those of its micro-batches.

    - A tensor with a batch dimension: the pieces joined along it.
    - A floating tensor without dimensions (a loss, a mean): the mean, weighted by rows.
    - What is the same in every micro-batch: that value, once.
    - Else a list with the value of each micro-batch.

    Args:
        name: of the leaf, for messages.

    Raises:
        ValueError: if the pieces have shapes that cannot be joined.
    """
    first = pieces[0]
    if len(pieces) == 1:
        return Joined(first, "same")
    if all(isinstance(piece, Tensor) for piece in pieces):
        if leaf.batch_dim is not None:
            sizes = tuple(piece.size(leaf.batch_dim) for piece in pieces)
            return Joined(_concatenated(pieces, leaf.batch_dim, name), "rows", sizes)
        if first.dim() == 0 and (first.is_floating_point() or first.is_complex()):
            return Joined(weighted_sum(pieces, weights), "mean")
        if all(_equal_tensors(first, piece) for piece in pieces[1:]):
            return Joined(first, "same")
        return Joined(list(pieces), "each")
    if all(_equal(first, piece) for piece in pieces[1:]):
        return Joined(first, "same")
    return Joined(list(pieces), "each")


def _concatenated(pieces: Sequence[Tensor], dim: int, name: str) -> Tensor:
    others = {(*piece.shape[:dim], *piece.shape[dim + 1 :]) for piece in pieces}
    if len(others) > 1:
        shapes = ", ".join(str(tuple(piece.shape)) for piece in pieces)
        raise ValueError(
            f"{name} cannot be joined along dimension {dim}: its shapes in the micro-batches are "
            f"{shapes}. Use a step with keep_output=False and a loss that needs each micro-batch's "
            "result alone, let the model return it in one shape for every micro-batch (padded to a "
            "fixed length), or use one micro-batch (chunks=1)"
        )
    return torch.cat(list(pieces), dim)


def weighted_sum(pieces: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """``Σ w_i · piece_i``, added in ascending order."""
    total = pieces[0] * weights[0]
    for piece, weight in zip(pieces[1:], weights[1:], strict=True):
        total = total + piece * weight
    return total


def _equal_tensors(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    return type(one) is type(other) and bool(one == other)


def scatter_gradient(
    leaf: OutputLeaf, joined: Joined, grad: Any, rows: Sequence[int]
) -> list[Tensor | None]:
    """The gradient of each micro-batch's piece, given that of the joined leaf.

    A value that is the same in every micro-batch counts once: the first micro-batch gets its gradient.
    """
    count = len(rows)
    if grad is None:
        return [None] * count
    match joined.kind:
        case "rows":
            assert leaf.batch_dim is not None
            return list(grad.split(list(joined.sizes), leaf.batch_dim))
        case "mean":
            return [grad * (piece_rows / sum(rows)) for piece_rows in rows]
        case "each":
            return list(grad)
        case _:
            return [grad, *[None] * (count - 1)]


def gather_input_gradient(
    leaf: InputLeaf, grads: Sequence[Any], inputs: Sequence[Tensor]
) -> Tensor | None:
    """The gradient of a whole input from those of its micro-batches, on the input's device.

    Args:
        leaf: the input.
        grads: per micro-batch, a tensor or None.
        inputs: the input as each micro-batch got it.
    """
    found = [grad for grad in grads if grad is not None]
    if not found:
        return None
    if leaf.batch_dim is None:
        whole = found[0]
        for grad in found[1:]:
            whole = whole + grad
    else:
        pieces = [
            torch.zeros_like(given, device=found[0].device) if grad is None else grad
            for grad, given in zip(grads, inputs, strict=True)
        ]
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, leaf.batch_dim)
    back: Tensor = whole.to(inputs[0].device)
    return back
