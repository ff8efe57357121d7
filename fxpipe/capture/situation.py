"""The situation of a call: everything besides the batch size that a recorded graph depends on."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fxpipe.capture.axes import Dynamic, Place, free_axes, marked
from fxpipe.capture.batch import batch_of
from fxpipe.capture.ragged import without_ragged
from fxpipe.capture.signature import flatten
from fxpipe.capture.specs import refuse_nested
from fxpipe.capture.splits import Splits
from fxpipe.ir.capture import Capture


def situation_of(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    like: Capture | None = None,
    splits: Splits | None = None,
    dynamic: Dynamic | None = None,
) -> Hashable:
    """A key that is equal for calls which can run the same graph.

    It holds the training flags of all submodules, dtypes of parameters and buffers, which parameters
    and inputs require gradients, the grad mode and autocast, the structure and constants of the
    arguments, and their shapes and dtypes with the batch dimension left out. NumPy arrays count by
    value, other constants that cannot be hashed by identity. On which devices parameters are does not
    matter: a pipeline spreads them.

    Args:
        like: a capture of the model: inputs have their rows where its inputs have them (see
            `batch_of`). None: it is guessed.
        splits: what the user says on where inputs have their rows.
        dynamic: dimensions that are left out as well (see `fxpipe.trace`), unless their size is one
            that a recording does not leave free.

    Raises:
        TypeError: if `dynamic` marks what is no tensor.
        ValueError: if `splits` or `dynamic` does not fit the inputs.
    """
    leaves, layout = flatten((tuple(args), dict(kwargs or {})))
    marks = marked(model, leaves, layout, dynamic)
    batch = batch_of(leaves, layout, like, marks)
    if splits:
        batch = splits.applied(batch, leaves, layout)
    batch = without_ragged(batch, leaves, layout, splits)
    dims = batch.dims if batch is not None else (None,) * len(leaves)
    free = {place for axis in free_axes(marks, leaves, batch) for place in axis.places}
    parameters, buffers = list(model.parameters()), list(model.buffers())
    return (
        tuple(module.training for module in model.modules()),
        tuple((parameter.dtype, parameter.requires_grad) for parameter in parameters),
        tuple(buffer.dtype for buffer in buffers),
        torch.is_grad_enabled(),
        _autocast([*parameters, *buffers, *leaves]),
        layout,
        tuple(_leaf(leaf, dims[at], at, free) for at, leaf in enumerate(leaves)),
    )


def _autocast(values: Sequence[Any]) -> Hashable:
    """Where autocast is on, and to what: on the CPU, the accelerator, and wherever a tensor is."""
    types = {value.device.type for value in values if isinstance(value, torch.Tensor)} | {"cpu"}
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None:
        types.add(accelerator.type)
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in sorted(types)
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    )


def _leaf(leaf: Any, dim: int | None, at: int, free: Collection[Place]) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        refuse_nested(leaf)
        sizes = enumerate(leaf.shape)
        shape = tuple(None if (at, d) in free else n for d, n in sizes if d != dim)
        return (dim, shape, leaf.dtype, leaf.device.type, leaf.requires_grad)
    if isinstance(leaf, float | complex):
        return (type(leaf), repr(leaf))  # 0.0 and -0.0 are equal, nan is not
    if isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
        return (type(leaf), leaf.shape, leaf.dtype.str, leaf.tobytes())
    try:
        hash(leaf)
    except TypeError:
        return (type(leaf), id(leaf))
    return (type(leaf), leaf)
