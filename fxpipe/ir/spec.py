"""What is known of a value without having it: shapes, dtypes, bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

_BITS = {
    "bool": 8,
    "uint8": 8,
    "int8": 8,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int16": 16,
    "uint16": 16,
    "float16": 16,
    "bfloat16": 16,
    "int32": 32,
    "uint32": 32,
    "float32": 32,
    "complex32": 32,
    "int64": 64,
    "uint64": 64,
    "float64": 64,
    "complex64": 64,
    "complex128": 128,
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, dtype (``"float32"``) and whether autograd follows the tensor."""

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense tensor of this shape."""
        return self.numel * _BITS.get(self.dtype, 32) // 8

    def __str__(self) -> str:
        short = self.dtype.replace("float", "f").replace("int", "i").replace("bf", "bf")
        return f"{short}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that is no tensor and no plain constant: only the name of its type is kept."""

    type_name: str

    def __str__(self) -> str:
        return f"<{self.type_name}>"


ValueSpec: TypeAlias = (
    "TensorSpec | Opaque | bool | int | float | complex | str | tuple[ValueSpec, ...]"
    " | dict[str, ValueSpec] | None"
)
"""Nested tuples and dicts whose leaves are `TensorSpec`, `Opaque` or plain constants."""


def tensor_specs(spec: ValueSpec) -> Iterator[TensorSpec]:
    """The tensors inside a value, in order."""
    if isinstance(spec, TensorSpec):
        yield spec
    elif isinstance(spec, tuple):
        for item in spec:
            yield from tensor_specs(item)
    elif isinstance(spec, dict):
        for item in spec.values():
            yield from tensor_specs(item)


def spec_bytes(spec: ValueSpec) -> int:
    """Bytes of all tensors inside a value."""
    return sum(tensor.nbytes for tensor in tensor_specs(spec))


def is_differentiable(spec: ValueSpec) -> bool:
    """Whether a gradient can flow back through the value."""
    return any(tensor.requires_grad for tensor in tensor_specs(spec))
