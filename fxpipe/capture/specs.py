"""Values → their specs, and tensors → ids of the storages they live in."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fxpipe.capture.containers import Shape, take_apart, tensors
from fxpipe.capture.watch import storage_key
from fxpipe.errors import CaptureError
from fxpipe.ir.spec import Opaque, TensorSpec, ValueSpec


def spec_of(value: Any) -> ValueSpec:
    """Shapes and dtypes of the tensors inside a value; containers become tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return tensor_spec(value)
    if isinstance(value, np.generic):
        return spec_of(value.item())
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    apart = take_apart(value)
    if apart is None:
        return Opaque(type(value).__name__)
    parts, children = apart
    if parts.shape in (Shape.DICT, Shape.DICT_SUBCLASS):
        return {str(key): spec_of(inner) for key, inner in zip(parts.items, children, strict=False)}
    if parts.shape is Shape.OBJECT:
        if next(tensors(value), None) is None:
            return Opaque(type(value).__name__)
        return {name: spec_of(inner) for name, inner in zip(parts.names, children, strict=True)}
    return tuple(spec_of(inner) for inner in children[: len(parts.items)])


def tensor_spec(tensor: torch.Tensor) -> TensorSpec:
    """Shape, dtype and whether autograd follows the tensor.

    Raises:
        CaptureError: if it is a nested tensor, which has no shape.
    """
    refuse_nested(tensor)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(tuple(int(n) for n in tensor.shape), dtype, tensor.requires_grad)


def refuse_nested(*values: Any) -> None:
    """Nothing, unless a nested tensor is among the values.

    Raises:
        CaptureError: if one is.
    """
    if any(isinstance(value, torch.Tensor) and value.is_nested for value in values):
        raise CaptureError(
            "a nested tensor is handed to the model or returned by it, and cannot be cut into "
            "micro-batches or sent on. What to do: hand over padded tensors, or values and offsets, and "
            "make nested tensors of them inside of a submodule (which then stays whole)"
        )


class Storages:
    """Storages seen while recording, numbered in order of appearance."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        self._alive: list[object] = []

    def of(self, value: Any) -> tuple[int, ...]:
        """Ids of the storages of the tensors inside a value, each once."""
        found: dict[int, None] = {}
        for tensor in tensors(value):
            key = storage_key(tensor)
            if key not in self._ids:
                self._ids[key] = len(self._ids)
                self._alive.append(_owner(tensor))
            found[self._ids[key]] = None
        return tuple(found)

    def known(self, keys: set[int]) -> tuple[int, ...]:
        """Ids of those keys that belong to a storage seen before, ascending."""
        return tuple(sorted(self._ids[key] for key in keys if key in self._ids))


def _owner(tensor: torch.Tensor) -> object:
    """What keeps a storage alive without keeping the autograd graph."""
    if tensor.layout is torch.strided:
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return tensor
    return tensor
