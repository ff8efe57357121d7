"""`CallSignature`: how a caller's arguments become placeholders, and output leaves become a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from fxpipe.ir.spec import TensorSpec


class Structure(Protocol):
    """A container taken apart: puts a list of leaves back into the shape they came from."""

    def unflatten(self, leaves: list[Any]) -> Any:
        """The container with `leaves` in place of its own, in order."""
        ...


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """One leaf of ``(args, kwargs)``.

    A tensor has a `placeholder` (the node's name) and a `spec`; `batch_dim` is the dimension that is
    split into micro-batches, None if the tensor is given whole to each of them. Any other value has
    no placeholder: it is part of the situation and was recorded as the constant `value`. `dynamic`
    names the other dimensions that may have any size, ascending.
    """

    name: str
    placeholder: str | None
    spec: TensorSpec | None
    batch_dim: int | None
    value: Any = None
    dynamic: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class OutputLeaf:
    """One leaf of the result: `batch_dim` is the dimension along which micro-batches are joined.

    `dims`: how many dimensions a tensor has in a micro-batch of several rows, where it was recorded.
    """

    batch_dim: int | None
    dims: int | None = None


@dataclass(frozen=True)
class CallSignature:
    """The shape of a call.

    Attributes:
        input: structure of ``(args, kwargs)``.
        inputs: its leaves, in order.
        output: structure of the result.
        outputs: its leaves, in order; they match the tuple of the graph's output node.
    """

    input: Structure
    inputs: tuple[InputLeaf, ...]
    output: Structure
    outputs: tuple[OutputLeaf, ...]

    @property
    def placeholders(self) -> tuple[InputLeaf, ...]:
        """The tensor leaves, in order of the graph's placeholders."""
        return tuple(leaf for leaf in self.inputs if leaf.placeholder is not None)
