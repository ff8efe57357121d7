"""What is of the whole batch: its outputs joined, their gradients cut up, gradients of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from fxpipe.ir.signature import CallSignature
from fxpipe.runtime.gather import Joined, gather, scatter_gradient
from fxpipe.runtime.values import map_tensors, tensors_in


class JoinedOutputs:
    """The model's output leaves for the whole batch.

    Args:
        signature: says along which dimension each leaf is joined.
        outputs: per micro-batch, the output leaves; a tensor's ``requires_grad`` says whether a
            gradient may come for it.
        weights: of the micro-batches, by which results without dimensions are added up.
        varying: positions of the leaves that follow from what is cut into micro-batches.
    """

    def __init__(
        self,
        signature: CallSignature,
        outputs: Sequence[Sequence[Any]],
        weights: Sequence[float],
        varying: frozenset[int] = frozenset(),
    ) -> None:
        self._signature = signature
        self._weights = weights
        self._leaves = [
            gather(leaf, [_detached(given[at]) for given in outputs], weights, varies=at in varying)
            for at, leaf in enumerate(signature.outputs)
        ]
        self._marks = [_marks(leaf, outputs, at) for at, leaf in enumerate(self._leaves)]

    def differentiable(self) -> list[Tensor]:
        """The tensors that a gradient may come for, in order."""
        return [
            tensor
            for leaf, marks in zip(self._leaves, self._marks, strict=True)
            for tensor, marked in zip(tensors_in(leaf.value), marks, strict=True)
            if marked
        ]

    def result(self, made: Sequence[Tensor] = ()) -> Any:
        """The result as the model returns it.

        Args:
            made: stand-ins for the tensors of `differentiable`, which are part of a graph.
        """
        stand_ins = iter(made)
        values = []
        for leaf, marks in zip(self._leaves, self._marks, strict=True):
            values.append(_replaced(leaf.value, marks, stand_ins) if made else leaf.value)
        return self._signature.output.unflatten(values)

    def without_values(self) -> JoinedOutputs:
        """What `gradients` needs, without holding the outputs."""
        bare = object.__new__(JoinedOutputs)
        bare._signature = self._signature
        bare._weights = self._weights
        bare._leaves = [Joined(None, leaf.kind, leaf.sizes, leaf.flat) for leaf in self._leaves]
        bare._marks = self._marks
        return bare

    def gradients(self, grads: Sequence[Tensor | None]) -> list[list[Any]]:
        """Per micro-batch a gradient for every output leaf, given those of `differentiable`."""
        given = iter(grads)
        columns = []
        for leaf, joined, marks in zip(
            self._signature.outputs, self._leaves, self._marks, strict=True
        ):
            wanted = [next(given) if marked else None for marked in marks]
            whole: Any = wanted[0] if wanted else None
            if joined.kind == "each":
                tensors = iter(wanted)
                whole = [next(tensors) if size else None for size in joined.sizes]
            columns.append(scatter_gradient(leaf, joined, whole, self._weights))
        return [[column[m] for column in columns] for m in range(len(self._weights))]


def _replaced(value: Any, marks: Sequence[bool], stand_ins: Iterator[Tensor]) -> Any:
    flags = iter(marks)
    return map_tensors(value, lambda tensor: next(stand_ins) if next(flags) else tensor)


def _detached(value: Any) -> Any:
    return map_tensors(value, lambda tensor: tensor.detach())


def _marks(joined: Joined, outputs: Sequence[Sequence[Any]], at: int) -> list[bool]:
    """For each tensor of a joined leaf, whether a gradient may come for it."""
    count = len(tensors_in(joined.value))
    if joined.kind == "each":
        marks = [t.requires_grad for given in outputs for t in tensors_in(given[at])]
        return marks if len(marks) == count else [False] * count
    return [any(_requires_grad(given[at]) for given in outputs)] * count


def _requires_grad(value: Any) -> bool:
    return any(tensor.requires_grad for tensor in tensors_in(value))
