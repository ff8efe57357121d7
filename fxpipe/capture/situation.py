"""The situation of a call: everything besides the batch size that a recorded graph depends on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fxpipe.capture.batch import find_batch
from fxpipe.capture.signature import flatten
from fxpipe.ir.capture import Capture


def situation_of(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    like: Capture | None = None,
) -> Hashable:
    """A key that is equal for calls which can run the same graph.

    It holds the training flags of all submodules, which parameters and inputs require gradients, the
    grad mode and autocast, the structure and constants of the arguments, and their shapes and dtypes
    with the batch dimension left out. `like`: a capture of the model; its batch lies along the same
    dimension (0 if there is none).
    """
    leaves, layout = flatten((tuple(args), dict(kwargs or {})))
    batch = find_batch(leaves, 0 if like is None else batch_dimension(like))
    dims = batch.dims if batch is not None else (None,) * len(leaves)
    return (
        tuple(module.training for module in model.modules()),
        tuple(parameter.requires_grad for parameter in model.parameters()),
        torch.is_grad_enabled(),
        _autocast(),
        layout,
        tuple(_leaf(leaf, dim) for leaf, dim in zip(leaves, dims, strict=True)),
    )


def batch_dimension(capture: Capture) -> int:
    """The dimension along which most inputs of a capture have their rows."""
    dims = [leaf.batch_dim for leaf in capture.signature.inputs if leaf.batch_dim is not None]
    return max(dims, default=0)


def _autocast() -> Hashable:
    devices = ("cpu", "cuda")
    return tuple(torch.get_autocast_dtype(d) for d in devices if torch.is_autocast_enabled(d))


def _leaf(leaf: Any, dim: int | None) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        shape = tuple(n for at, n in enumerate(leaf.shape) if at != dim)
        return (dim, shape, leaf.dtype, leaf.device.type, leaf.requires_grad)
    try:
        hash(leaf)
    except TypeError:
        return (type(leaf), id(leaf))
    return (type(leaf), leaf)
