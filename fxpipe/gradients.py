"""Gradients that parameters have, out of the way of backwards that are none of the caller's."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import torch
from torch import nn
from torch.nn.parameter import is_lazy


class Gradients:
    """The ``.grad`` of a model's parameters, and of other leaves that autograd may add to.

    Inside they have none; at the end they have the very tensors that they had. `torch.autograd.grad`
    adds to no ``.grad``, but a hand-written `torch.autograd.Function` may call ``backward()`` in its own
    backward (reversible layers do), which adds in place to whatever is there.

    Args:
        model: its parameters and buffers.
        others: tensors; those that can have no gradient are left out.
    """

    def __init__(self, model: nn.Module, others: Iterable[torch.Tensor] = ()) -> None:
        parameters = [each for each in model.parameters() if _is_there(each)]
        leaves = [each for each in (*model.buffers(), *others) if _can_have_one(each)]
        self._leaves = list({id(each): each for each in (*parameters, *leaves)}.values())

    def __enter__(self) -> Gradients:
        self._users = [leaf.grad for leaf in self._leaves]
        self.forget()
        return self

    def forget(self) -> None:
        """Drop what has been added since."""
        for leaf in self._leaves:
            if leaf.grad is not None:
                leaf.grad = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for leaf, users in zip(self._leaves, self._users, strict=True):
            if leaf.grad is not users:
                leaf.grad = users


def _is_there(parameter: nn.Parameter) -> bool:
    return not is_lazy(parameter)


def _can_have_one(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf
