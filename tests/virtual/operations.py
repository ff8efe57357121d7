"""What a torch operation does with its operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

# These write their running statistics, though their schemas do not say so.
_HIDDEN_WRITES = {"aten::native_batch_norm": ("running_mean", "running_var")}

# They use the operand's shape only.
_SHAPE_ONLY = ("_like", "::detach", "::alias", "::lift_fresh")

# The host waits for the current stream: it needs the numbers.
_BLOCKING = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::is_nonzero",
    "aten::nonzero",
    "aten::masked_select",
}

# A copy from one device to another is what they are for.
_TRANSFERS = {"aten::_to_copy", "aten::copy_"}


@dataclass(frozen=True)
class Operation:
    """One call of an operator: the tensors it reads and writes, and those it makes.

    `device` is the one it was told to make its result on.
    """

    name: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    touched: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    device: torch.device | None

    @property
    def is_transfer(self) -> bool:
        """Whether operands may be on two devices."""
        return self.name in _TRANSFERS

    @property
    def is_blocking(self) -> bool:
        """Whether the host waits for the result."""
        return self.name in _BLOCKING


def operation(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> Operation:
    """The operation that ``func(*args, **kwargs)`` was."""
    schema = func._schema
    hidden = _HIDDEN_WRITES.get(schema.name, ())
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    given = dict(zip((argument.name for argument in schema.arguments), args, strict=False))
    given.update(kwargs)
    for argument in schema.arguments:
        is_write = argument.alias_info is not None and argument.alias_info.is_write
        side = writes if is_write or argument.name in hidden else reads
        side += _tensors(given.get(argument.name))
    shape_only = func.is_view or ".new_" in schema.name or schema.name.endswith(_SHAPE_ONLY)
    return Operation(
        schema.name,
        () if shape_only else tuple(reads),
        tuple(writes),
        (*reads, *writes),
        tuple(_tensors(result)),
        given.get("device"),
    )


def _tensors(value: Any) -> list[Tensor]:
    return [
        leaf
        for leaf in tree_leaves(value)
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided
    ]
