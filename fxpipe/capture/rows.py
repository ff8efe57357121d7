"""Along which dimension the rows of a batch lie, for models that may take sequences first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fxpipe import interrupts
from fxpipe.capture.batch import Batch, find_batch
from fxpipe.capture.restore import ModelState, Modes, Randomness
from fxpipe.capture.signature import Layout, flatten
from fxpipe.ir.capture import Capture


def choose_batch(
    model: nn.Module,
    leaves: Sequence[Any],
    layout: Layout,
    taken: Collection[tuple[int, int]] = (),
) -> Batch | None:
    """The batch of a call: along dimension 0, unless rows there turn out not to be independent.

    Only where a module of the model takes its batch second (``batch_first=False``) the model is run:
    in evaluation mode, once as given and once with another first row. What else changes is no row of
    its own.

    Args:
        leaves: of ``(args, kwargs)``, put together by `layout`.
        taken: dimensions (leaf, dimension) that have no rows.
    """
    first = find_batch(leaves, taken=taken)
    second = find_batch(leaves, dim=1, taken=taken)
    if first is None or second is None or not _takes_sequences_first(model):
        return first
    if any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in _all(model, leaves)):
        return second if getattr(model, "batch_first", True) is False else first
    for batch, dim in ((first, 0), (second, 1)):
        if batch.size > 1 and _has_independent_rows(model, leaves, layout, batch, dim):
            return batch
    return first


def for_rows(capture: Capture, like: Capture, rows: int) -> Capture:
    """A capture of one size, as the one of a micro-batch with so many rows.

    Args:
        capture: recorded as if no input had rows.
        like: of the same call with another number of rows: it says where inputs and results have them.
    """
    signature = capture.signature
    inputs = tuple(
        replace(leaf, batch_dim=known.batch_dim)
        for leaf, known in zip(signature.inputs, like.signature.inputs, strict=True)
    )
    outputs = signature.outputs
    if len(outputs) == len(like.signature.outputs):
        pairs = zip(outputs, like.signature.outputs, strict=True)
        outputs = tuple(
            replace(leaf, batch_dim=known.batch_dim, dims=known.dims) for leaf, known in pairs
        )
    signature = replace(signature, inputs=inputs, outputs=outputs)
    known = replace(capture, signature=signature, batch_size=rows)
    return replace(known, rows=(rows, rows), only_rows=())


def _takes_sequences_first(model: nn.Module) -> bool:
    return any(getattr(module, "batch_first", True) is False for module in model.modules())


def _all(model: nn.Module, leaves: Sequence[Any]) -> list[Any]:
    return [*model.parameters(), *model.buffers(), *leaves]


def _has_independent_rows(
    model: nn.Module, leaves: Sequence[Any], layout: Layout, batch: Batch, dim: int
) -> bool:
    """Whether some result has the batch's rows along `dim`, and only its first follows the first."""
    changed = [_swap_first(leaf, at) for leaf, at in zip(leaves, batch.dims, strict=True)]
    one, two = (_results(model, given, layout) for given in (leaves, changed))
    rows = [
        (a.narrow(dim, 1, batch.size - 1), b.narrow(dim, 1, batch.size - 1))
        for a, b in zip(one, two, strict=True)
        if a.dim() > dim and a.shape == b.shape and a.shape[dim] == batch.size
    ]
    return bool(rows) and all(torch.equal(a, b) for a, b in rows)


def _swap_first(leaf: Any, dim: int | None) -> Any:
    """A tensor whose first row is like its last; numbers also change sign, so that it differs."""
    if dim is None:
        return leaf
    changed = leaf.detach().clone()
    first, last = changed.select(dim, 0), changed.select(dim, -1)
    first.copy_(-last if changed.is_floating_point() else last)
    return changed


def _results(model: nn.Module, leaves: Sequence[Any], layout: Layout) -> list[torch.Tensor]:
    with (
        interrupts.held() as interrupt,
        ModelState(model),
        Randomness(),
        Modes(),
        torch.no_grad(),
        interrupt.allowed(),
    ):
        model.eval()
        args, kwargs = layout.unflatten(
            [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        )
        found = flatten(model(*args, **kwargs))[0]
    return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]
