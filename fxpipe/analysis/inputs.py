"""A caller's arguments as values of the placeholders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxpipe.errors import CaptureError

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture


@dataclass(frozen=True, slots=True)
class _Hole:
    """Stands for leaf number `index` in the recorded structure of the arguments."""

    index: int


def placeholder_values(
    capture: Capture, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """The tensors among the arguments, in order of the graph's placeholders.

    Raises:
        CaptureError: if the arguments are built otherwise than those recorded.
    """
    signature = capture.signature
    holes = [_Hole(index) for index in range(len(signature.inputs))]
    template = signature.input.unflatten(list(holes))
    leaves = dict(_leaves(template, (tuple(args), dict(kwargs)), ""))
    values = []
    for index, leaf in enumerate(signature.inputs):
        if leaf.placeholder is None:
            continue
        value = leaves.get(index)
        if not isinstance(value, torch.Tensor):
            raise CaptureError(f"{leaf.name} was a tensor when recorded, now it is {value!r}")
        values.append(value)
    return values


def rows(capture: Capture, values: Sequence[torch.Tensor]) -> int:
    """The batch size of some inputs; the recorded one if none has a batch dimension."""
    for leaf, value in zip(capture.signature.placeholders, values, strict=True):
        if leaf.batch_dim is not None:
            return int(value.shape[leaf.batch_dim])
    return capture.batch_size


def _leaves(template: Any, value: Any, where: str) -> Iterator[tuple[int, Any]]:
    """What stands in the place of each hole, walking both structures at once."""
    if isinstance(template, _Hole):
        yield template.index, value
        return
    for step, inner in _children(template):
        found = dict(_children(value))
        if step not in found:
            raise CaptureError(f"the arguments have no {where}{step}, which they had when recorded")
        yield from _leaves(inner, found[step], f"{where}{step}.")


def _children(value: Any) -> list[tuple[Any, Any]]:
    """The parts of a container, each with its index, key or attribute name."""
    if isinstance(value, dict):
        return list(dict.items(value))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    return list(getattr(value, "__dict__", {}).items())
