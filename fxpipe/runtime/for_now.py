"""Graphs that are differentiated where they are made, and kept no longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.autograd.graph import saved_tensors_hooks

from fxpipe.capture import remedies
from fxpipe.errors import ExecutionError
from fxpipe.ir.capture import Capture


def may_hold(capture: Capture) -> bool:
    """Whether graphs can be kept for now only: transforms of torch.func refuse to run in that."""
    return all(leaf.remedy != remedies.TRANSFORM for leaf in capture.leaves)


@contextmanager
def saved_for_now() -> Iterator[None]:
    """Graphs made inside can be differentiated inside; after, nothing that they have saved is held."""
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> int:
        saved.append(tensor.detach())
        return len(saved) - 1

    def unpack(at: int) -> torch.Tensor:
        if not saved:
            raise ExecutionError(
                "a tensor that the model has kept from its forward is differentiated, and recompute= "
                "has thrown its graph away: use recompute='never'"
            )
        return saved[at]

    try:
        with saved_tensors_hooks(pack, unpack):
            yield
    finally:
        saved.clear()
