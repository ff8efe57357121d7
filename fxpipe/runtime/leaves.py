"""Leaves: what one stage reads in place of tensors that other stages, or its own copies, read too.

Two threads never add to one gradient: whoever shares a parameter reads a leaf of its own, with the
same memory where it is on the same device, and the leaves' gradients are added to the parameter's
when the step is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

Leaves: TypeAlias = Mapping[Tensor, Tensor]
"""Parameter (or buffer of another device) → what one stage reads in its place."""

Place: TypeAlias = tuple[int, int]
"""Stage, rank: where a copy of a stage runs."""

NO_LEAVES: Final[Leaves] = {}


def leaf_for(tensor: Tensor, device: torch.device, *, keeps_graph: bool) -> Tensor | None:
    """What is read on a device in place of a tensor that others read; None if it can be read itself.

    Its values are the tensor's as they are now: on another device it is a copy of them.
    """
    wants_gradient = keeps_graph and tensor.requires_grad
    if not wants_gradient and tensor.device == device:
        return None
    here = tensor.detach().to(device)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(here, tensor.requires_grad)
    return here.requires_grad_(tensor.requires_grad)


def leaf_of(leaves: Leaves, tensor: Any) -> Any:
    """What is read in place of a tensor; anything else is itself."""
    return leaves.get(tensor, tensor) if isinstance(tensor, Tensor) else tensor


def add_up(leaves: Iterable[Leaves]) -> None:
    """Add what leaves have accumulated to the parameters' gradients, in order.

    It goes through autograd, so that hooks of the parameters are called.

    Args:
        leaves: of stages and their copies.
    """
    for of_stage in leaves:
        parameters, grads = [], []
        for parameter, leaf in of_stage.items():
            if leaf.grad is not None:
                parameters.append(parameter)
                grads.append(leaf.grad.to(parameter.device))
                leaf.grad = None
        if parameters:
            torch.autograd.backward(parameters, grads)
