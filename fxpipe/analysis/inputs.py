"""A caller's arguments as values of the placeholders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from fxpipe.errors import CaptureError

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture


def placeholder_values(
    capture: Capture, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """The tensors among the arguments, in order of the graph's placeholders.

    Raises:
        CaptureError: if there are more or fewer arguments than were recorded, or one is no tensor where
            a tensor was recorded.
    """
    leaves = tree_leaves((tuple(args), dict(kwargs)))
    recorded = capture.signature.inputs
    if len(leaves) != len(recorded):
        raise CaptureError(
            f"{len(leaves)} values were given, {len(recorded)} were recorded: "
            + ", ".join(leaf.name for leaf in recorded)
        )
    for leaf, value in zip(recorded, leaves, strict=True):
        if leaf.placeholder is not None and not isinstance(value, torch.Tensor):
            raise CaptureError(f"{leaf.name} was a tensor when recorded, now it is {value!r}")
    pairs = zip(recorded, leaves, strict=True)
    return [value for leaf, value in pairs if leaf.placeholder is not None]


def rows(capture: Capture, values: Sequence[torch.Tensor]) -> int:
    """The batch size of some inputs; the recorded one if none has a batch dimension."""
    for leaf, value in zip(capture.signature.placeholders, values, strict=True):
        if leaf.batch_dim is not None:
            return int(value.shape[leaf.batch_dim])
    return capture.batch_size
