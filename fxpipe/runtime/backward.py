"""The backward of one stage on one micro-batch: from the gradients of its results to its entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward

from fxpipe.runtime.values import Edges, Gradients, roots


class Roots:
    """Where a backward starts: gradient edges, each with the gradient that arrived there.

    The engine adds what a root brings to the gradient of a value before anything that comes from
    inside the stage. So a value that later stages read too gets the sum of their gradients first, and
    the sums keep the order that eager autograd gives them (later readers first).
    """

    def __init__(self) -> None:
        self._at: list[GradientEdge | Tensor] = []
        self._grads: list[Tensor] = []

    @property
    def starts(self) -> Sequence[GradientEdge | Tensor]:
        """All of them."""
        return self._at

    def add_all(self, edges: Iterable[Edges], grads: Iterable[Gradients]) -> None:
        """Values' gradients, position by position, where there is one and the value has a graph."""
        for edge, grad in zip(edges, grads, strict=False):
            if edge is None or grad is None:
                continue
            if isinstance(grad, Tensor) and isinstance(edge, GradientEdge):
                self._at.append(edge)
                self._grads.append(grad)
            else:
                for one, its_grad in roots(edge, grad):
                    self._at.append(one)
                    self._grads.append(its_grad)

    def add_loss(self, loss: Tensor, scale: float = 1.0) -> None:
        """A scalar to be differentiated, with the gradient `scale`."""
        self._at.append(loss)
        self._grads.append(torch.full_like(loss, scale, memory_format=torch.preserve_format))

    def run(self, only: Sequence[Tensor] = ()) -> None:
        """Run backward from all roots; parameters accumulate their gradients.

        Args:
            only: leaves; nothing is computed but what leads to them.
        """
        if self._at:
            _engine_run_backward(
                tuple(self._at),
                tuple(self._grads),
                False,
                False,
                tuple(only),
                allow_unreachable=True,
                accumulate_grad=True,
            )
