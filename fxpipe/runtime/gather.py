"""The results of micro-batches joined, and gradients of the joined ones cut up again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxpipe.ir.signature import InputLeaf, OutputLeaf


@dataclass(frozen=True)
class Joined:
    """One output leaf of the whole batch: its value, and how gradients go back to the micro-batches."""

    value: Any
    kind: str
    """``"rows"``: joined along the batch dimension; ``"mean"``; ``"same"``; ``"each"``: a list."""
    sizes: tuple[int, ...] = ()
    """Of the micro-batches' pieces along the batch dimension; of a list: 1 for tensors, 0 for others."""
    flat: tuple[bool, ...] = ()
    """Whether a micro-batch's piece has one row, and no dimension for it."""


def gather(
    leaf: OutputLeaf, pieces: Sequence[Any], weights: Sequence[float], *, varies: bool = False
) -> Joined:
    """One output leaf of the whole batch from those of its micro-batches.

    - A tensor with a batch dimension: the pieces joined along it, if their other dimensions agree.
    - A floating tensor without dimensions (a loss, a mean): ``Σ w_i · piece_i``.
    - What does not follow from the rows, and is the same in every micro-batch: that value, once.
    - Else a list with the value of each micro-batch.

    So it does not depend on data which of these a result is, but where a model's own shapes do.

    Args:
        leaf: how it was recorded.
        pieces: per micro-batch.
        weights: of the micro-batches: their shares of the rows, or what a step's losses weigh.
        varies: whether the leaf follows from what is cut into micro-batches.
    """
    first = pieces[0]
    if len(pieces) == 1 and (weights[0] == 1 or not _is_scalar(first)):
        return Joined(first, "same")
    if all(isinstance(piece, Tensor) for piece in pieces):
        if leaf.batch_dim is not None:
            return _rows(leaf, pieces)
        if all(map(_is_scalar, pieces)):
            return Joined(weighted_sum(pieces, weights), "mean")
    if not varies and all(_equal(first, piece) for piece in pieces[1:]):
        return Joined(first, "same")
    return _each(pieces)


def _rows(leaf: OutputLeaf, pieces: Sequence[Tensor]) -> Joined:
    """The pieces joined along the batch dimension, if they can be.

    One row may have lost its dimension (``y.squeeze()``).
    """
    dim = leaf.batch_dim
    assert dim is not None
    dims = max(piece.dim() for piece in pieces) if leaf.dims is None else leaf.dims
    flat = tuple(piece.dim() == dims - 1 for piece in pieces)
    whole = [
        piece.unsqueeze(dim) if is_flat else piece
        for piece, is_flat in zip(pieces, flat, strict=True)
    ]
    if not _can_be_joined(whole, dim):
        return _each(pieces)
    sizes = tuple(piece.size(dim) for piece in whole)
    return Joined(torch.cat(whole, dim), "rows", sizes, flat)


def _each(pieces: Sequence[Any]) -> Joined:
    return Joined(list(pieces), "each", tuple(int(isinstance(p, Tensor)) for p in pieces))


def _is_scalar(value: Any) -> bool:
    """Whether a value is a floating or complex tensor without dimensions."""
    is_number = isinstance(value, Tensor) and value.dim() == 0
    return is_number and (value.is_floating_point() or value.is_complex())


def _can_be_joined(pieces: Sequence[Tensor], dim: int) -> bool:
    others = {(*piece.shape[:dim], *piece.shape[dim + 1 :]) for piece in pieces}
    return len(others) == 1 and all(piece.dim() > dim for piece in pieces)


def weighted_sum(pieces: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """``Σ w_i · piece_i``, added in ascending order; pieces of weight 0 are not looked at."""
    (first, share), *rest = [(p, w) for p, w in zip(pieces, weights, strict=True) if w != 0]
    total = first * share
    for piece, weight in rest:
        total = total + piece * weight
    return total


def weighted_loss(losses: Sequence[Tensor | None], weights: Sequence[float]) -> Tensor | None:
    """``Σ w_i · loss_i`` of the micro-batches that have one; None if none has."""
    found = [(loss, w) for loss, w in zip(losses, weights, strict=True) if loss is not None]
    if not found:
        return None
    return weighted_sum([loss for loss, _ in found], [weight for _, weight in found])


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    return type(one) is type(other) and bool(one == other)


def scatter_gradient(
    leaf: OutputLeaf, joined: Joined, grad: Any, weights: Sequence[float]
) -> list[Tensor | None]:
    """The gradient of each micro-batch's piece, given that of the joined leaf.

    A value that is the same in every micro-batch counts once: the first micro-batch gets its gradient.
    """
    count = len(weights)
    if grad is None:
        return [None] * count
    match joined.kind:
        case "rows":
            assert leaf.batch_dim is not None
            pieces = grad.split(list(joined.sizes), leaf.batch_dim)
            return [
                piece.squeeze(leaf.batch_dim) if is_flat else piece
                for piece, is_flat in zip(pieces, joined.flat, strict=True)
            ]
        case "mean":
            return [grad * weight for weight in weights]
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
