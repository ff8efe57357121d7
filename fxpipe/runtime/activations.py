"""What a stage holds of a micro-batch between its forward and its backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from fxpipe.runtime.loss_draws import Before
from fxpipe.runtime.recompute import Found
from fxpipe.runtime.values import Edges, Gradients, map_tensors, tensors_in
from fxpipe.runtime.weight_queue import WeightQueue


class Frame:
    """A stage's part of one micro-batch. Positions are those of the stage's reads and writes.

        arrives           forward            leaves
        inputs[r]  ──►  edges, entry  ──►  sends[w]
        handed[r]  ◄──  edges, entry  ◄──  later[w], later[W + r]
        leaves            backward           arrives

    Nothing of it outlives its use: inputs go with the forward (unless it is to be rerun), sends with
    the last reader, and everything else with the backward.

    Attributes:
        inputs: values read, sealed.
        sends: values made, sealed.
        edges: gradient edges of the values made, then of those values read that later stages read too.
        entry: where the gradients of the values read come out.
        later: gradients from the later readers, at the same positions as `edges`.
        handed: gradients for the earlier holder of each value read.
        root: the loss, times its weight.
        loss_draws: states of the generators that the loss began with, if it drew and will run again.
        outputs: gradient edges of the model's outputs (last stage of a call without loss).
        buffers: the buffers as the forward found them, if what runs again in backward may read others.
        replay: what a rerun of the forward needs; None if it will not be rerun.
        weights_due: what the input pass leaves to the weight pass; None if the stage splits nothing.
        versions: of the caller's tensors among the inputs, for a rerun.
    """

    __slots__ = (
        "buffers",
        "edges",
        "entry",
        "handed",
        "inputs",
        "later",
        "loss_draws",
        "outputs",
        "replay",
        "root",
        "sends",
        "versions",
        "weights_due",
    )

    def __init__(self, reads: int, writes: int) -> None:
        self.inputs: list[Any] = [None] * reads
        self.sends: list[Any] = [None] * writes
        self.edges: list[Edges] = []
        self.entry: Entry | None = None
        self.later: list[Gradients] = [None] * (writes + reads)
        self.handed: list[Gradients] = [None] * reads
        self.root: Tensor | None = None
        self.loss_draws: Before | None = None
        self.outputs: list[Edges] = []
        self.buffers: Found | None = None
        self.replay: Found | None = None
        self.versions: list[int] = []
        self.weights_due: WeightQueue | None = None

    def forget_graph(self) -> None:
        """Let go of everything but the gradients to be handed on, and what the weight pass needs."""
        self.inputs, self.later, self.edges, self.outputs = [], [], [], []
        self.entry = self.root = self.buffers = self.replay = self.loss_draws = None


class Entry:
    """The values that a stage read, as part of its graph, and the gradients that come back for them."""

    __slots__ = ("_counts", "_grads", "_size", "values")

    def __init__(self, sealed: Sequence[Any], anchor: Tensor) -> None:
        """Open sealed values: where a gradient is wanted, autograd follows them from here on.

        Args:
            sealed: the values.
            anchor: a leaf that requires grad; it gets none. It makes autograd follow the values
                without them being inputs of a node, which would keep their memory.
        """
        self.values: list[Any]
        self._size = len(sealed)
        self._grads: list[tuple[Tensor | None, ...]] = []
        self._counts: list[int | None] | None = None
        marked = [v for v in sealed if isinstance(v, Tensor) and v.requires_grad]
        if marked and len(marked) == len(sealed):  # the usual stage
            self.values = list(_receive(self._grads, anchor, marked))
        else:
            self._open_containers(sealed, anchor)

    def _open_containers(self, sealed: Sequence[Any], anchor: Tensor) -> None:
        marked: list[Tensor] = []
        self._counts = []
        for value in sealed:
            inside = [tensor for tensor in tensors_in(value) if tensor.requires_grad]
            marked.extend(inside)
            self._counts.append(None if isinstance(value, Tensor) and inside else len(inside))
        self.values = list(sealed)
        if marked:
            opened = iter(_receive(self._grads, anchor, marked))
            self.values = [
                map_tensors(value, lambda t: next(opened) if t.requires_grad else t)
                for value in sealed
            ]

    def close(self) -> list[Any]:
        """The opened values, which are not held any longer."""
        values, self.values = self.values, []
        return values

    def gradients(self) -> list[Gradients]:
        """For each value the gradient as the engine made it; None where there is none."""
        grads = self._grads.pop() if self._grads else ()
        if self._counts is None:
            return list(grads) or [None] * self._size
        given = iter(grads or (None,) * sum(count or 1 for count in self._counts))
        return [
            next(given) if count is None else tuple(next(given) for _ in range(count)) or None
            for count in self._counts
        ]


class _Receive(torch.autograd.Function):
    """Identity on tensors that come from elsewhere; its backward puts the gradients into a list.

    The gradient that a leaf accumulates is a copy in the leaf's own memory layout, and sums over a
    gradient depend on its layout: here it is taken as the engine made it.
    """

    @staticmethod
    def forward(
        ctx: Any, grads: list[tuple[Tensor | None, ...]], anchor: Tensor, tensors: list[Tensor]
    ) -> tuple[Tensor, ...]:
        ctx.grads = grads
        ctx.set_materialize_grads(False)
        # Detached, not viewed: the model may change in place what it received.
        return tuple([tensor.detach() for tensor in tensors])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None, None]:
        ctx.grads.append(grads)
        return None, None, None


# `Function.apply` first makes sure that no functorch transform is active; in a stage none is.
_receive: Final[Callable[..., tuple[Tensor, ...]]] = super(torch.autograd.Function, _Receive).apply
