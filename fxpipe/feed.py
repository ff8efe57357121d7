"""What one call feeds to the stages, micro-batch by micro-batch, and how its results come back.

A `WholeBatch` is cut into micro-batches, and its results are joined as it was cut. A `ReadyMade` batch
comes as micro-batches of any shapes, and its results stay apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fxpipe.capture.signature import flatten
from fxpipe.ir.signature import CallSignature
from fxpipe.joined import JoinedOutputs
from fxpipe.runtime.gather import gather_input_gradient
from fxpipe.runtime.loss import Call
from fxpipe.runtime.micro_batch import MicroBatches, detached, rows_of, scatter


class Feed(Protocol):
    """The micro-batches of a step."""

    batches: MicroBatches
    """Rows and input tensors of each."""

    def calls(self) -> list[Call]:
        """The arguments of each."""
        ...

    def joined(self, outputs: Sequence[Sequence[Any]], weights: Sequence[float]) -> Any:
        """The result, given the output leaves of each."""
        ...

    def pass_on(self, grads: Sequence[Sequence[Any]]) -> None:
        """Run the inputs' gradients back into whatever graph the caller made the inputs with."""
        ...


class WholeBatch:
    """A batch to be cut into micro-batches.

    Args:
        signature: says which inputs are cut, and how results are joined.
        args: positional arguments of the batch.
        kwargs: its keyword arguments.
        chunks: micro-batches wanted.
        varying: the results that follow from the rows (see `fxpipe.analysis.varying`).

    Attributes:
        tensors: the caller's, in order of the signature's placeholders.

    Raises:
        ValueError: if it cannot be cut.
    """

    def __init__(
        self,
        signature: CallSignature,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        chunks: int,
        varying: frozenset[int] = frozenset(),
    ) -> None:
        self._signature = signature
        self._varying = varying
        self._leaves, self._layout = flatten((args, dict(kwargs)))
        self.tensors = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        self.batches = scatter(self._signature, self.tensors, chunks)

    def calls(self) -> list[Call]:
        """The arguments of each micro-batch."""
        return [self._call(inputs) for inputs in self.batches.inputs]

    def _call(self, inputs: Sequence[Tensor]) -> Call:
        given = iter(inputs)
        pieces = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        args, kwargs = self._layout.unflatten(pieces)
        return args, kwargs

    def outputs(
        self, leaves: Sequence[Sequence[Any]], weights: Sequence[float] | None = None
    ) -> JoinedOutputs:
        """The output leaves of all micro-batches, joined (by their shares of the rows, if None)."""
        shares = weights or self.batches.weights
        return JoinedOutputs(self._signature, leaves, shares, self._varying)

    def joined(self, outputs: Sequence[Sequence[Any]], weights: Sequence[float]) -> Any:
        """The result for the whole batch."""
        return self.outputs(outputs, weights).result()

    def without_leaves(self) -> WholeBatch:
        """What `input_gradient` needs, without holding the caller's tensors."""
        bare = object.__new__(WholeBatch)
        bare._signature = self._signature
        bare.batches = self.batches
        return bare

    def input_gradient(self, at: int, grads: Sequence[Sequence[Any]]) -> Tensor | None:
        """The gradient of a whole input, given per micro-batch those of all inputs."""
        return gather_input_gradient(
            self._signature.placeholders[at],
            [given[at] for given in grads],
            [inputs[at] for inputs in self.batches.inputs],
        )

    def pass_on(self, grads: Sequence[Sequence[Any]]) -> None:
        """Run the inputs' gradients back into whatever graph the caller made the inputs with."""
        wanted = [at for at, tensor in enumerate(self.tensors) if tensor.requires_grad]
        _run_back([(self.tensors[at], self.input_gradient(at, grads)) for at in wanted])


class ReadyMade:
    """A batch that comes as micro-batches.

    Args:
        signatures: per micro-batch, how it was recorded.
        calls: their arguments.

    Raises:
        ValueError: if inputs of one micro-batch have different numbers of rows.
    """

    def __init__(self, signatures: Sequence[CallSignature], calls: Sequence[Call]) -> None:
        self._signatures = signatures
        self._calls = list(calls)
        self._tensors = [
            [leaf for leaf in flatten(call)[0] if isinstance(leaf, Tensor)] for call in calls
        ]
        self.batches = MicroBatches(
            tuple(map(rows_of, signatures, self._tensors)),
            tuple(tuple(map(detached, tensors)) for tensors in self._tensors),
        )

    def calls(self) -> list[Call]:
        """The arguments of each micro-batch."""
        return self._calls

    def joined(self, outputs: Sequence[Sequence[Any]], weights: Sequence[float]) -> list[Any]:
        """The model's result for each micro-batch."""
        pairs = zip(self._signatures, outputs, strict=True)
        return [JoinedOutputs(signature, [leaves], (1.0,)).result() for signature, leaves in pairs]

    def pass_on(self, grads: Sequence[Sequence[Any]]) -> None:
        """Run the inputs' gradients back into whatever graph the caller made the inputs with."""
        pairs = [
            (tensor, None if grad is None else grad.to(tensor.device))
            for tensors, given in zip(self._tensors, grads, strict=True)
            for tensor, grad in zip(tensors, given, strict=True)
            if tensor.requires_grad
        ]
        _run_back(pairs)


def _run_back(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    """One backward from all tensors that got a gradient; where one got several, they are added."""
    found: dict[Tensor, Tensor] = {}
    for tensor, grad in pairs:
        if grad is not None:
            found[tensor] = found[tensor] + grad if tensor in found else grad
    if found:
        torch.autograd.backward(list(found), list(found.values()))
