"""The examples that a model is recorded with: of a call, what its first micro-batch will be."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxpipe.capture.axes import free_axes, marked
from fxpipe.capture.batch import Batch, batch_of, resized
from fxpipe.capture.masks import refuse_masks
from fxpipe.capture.ragged import ragged_lists, refuse_ragged, without_ragged
from fxpipe.capture.rows import choose_batch
from fxpipe.capture.signature import Layout, argument_names, flatten
from fxpipe.capture.splits import Splits
from fxpipe.ir.capture import Capture
from fxpipe.ir.spec import TensorSpec
from fxpipe.options import Options
from fxpipe.runtime.together import together


@dataclass(frozen=True)
class Example:
    """A micro-batch to record a model with, and along which dimension each leaf has its rows.

    `may_be_whole`: whether it may turn out that none has any (see `trace`).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch_dims: tuple[int | None, ...] | None
    may_be_whole: bool = False


class Examples:
    """Makes examples of calls.

    Args:
        model: the recorded one.
        options: of the pipeline.
        splits: what the user says on how inputs are cut.
        first: the model's first capture, if there is one already.

    Attributes:
        first: the first capture; it says where the inputs of later calls have their rows.
    """

    def __init__(
        self, model: nn.Module, options: Options, splits: Splits, first: Capture | None
    ) -> None:
        self.first = first
        self._model = model
        self._options = options
        self._splits = splits
        self._without_rows: dict[Hashable, Capture] = {}

    def sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """The sizes of a call that a recording leaves free, by name."""
        leaves, layout = flatten((args, dict(kwargs)))
        marks = marked(self._model, leaves, layout, self._options.dynamic)
        return {axis.mark.name: axis.size for axis in free_axes(marks, leaves, None)}

    def like(self, leaves: Sequence[Any], layout: Layout) -> Capture | None:
        """The capture that says where inputs have their rows; None: it is to be guessed.

        What seemed to be rows may turn out to be none: the first graph's last nodes had no edges. That
        tells nothing of inputs with other numbers of dimensions: a vector has no rows, a matrix has.
        """
        if self.first is None:
            return None
        capture = self._without_rows.get((layout, _ranks(leaves)), self.first)
        recorded = [leaf.spec for leaf in capture.signature.inputs]
        return capture if capture.has_rows or _ranks(recorded) == _ranks(leaves) else None

    def learn_without_rows(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], capture: Capture
    ) -> None:
        """Note that no input of such a call has rows, as its capture shows."""
        leaves, layout = flatten((args, dict(kwargs)))
        self._without_rows[layout, _ranks(leaves)] = capture

    def micro_batch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], chunks: int) -> Example:
        """The arguments with as many rows as the first micro-batch, but two at least."""
        leaves, layout = flatten((args, dict(kwargs)))
        batch = self._batch(leaves, layout, chunks)
        if batch is None:
            return Example(args, dict(kwargs), (None,) * len(leaves))
        if batch.size == 0:
            raise ValueError("the batch is empty: it has 0 rows")
        if chunks == 1:
            return Example(args, dict(kwargs), batch.dims, may_be_whole=not self._splits)
        refuse_masks((args, kwargs), [x for x, d in zip(leaves, batch.dims, strict=True) if d == 0])
        some_args, some_kwargs = layout.unflatten(
            resized(leaves, batch, _rows(leaves, batch, chunks))
        )
        return Example(some_args, some_kwargs, batch.dims)

    def _batch(self, leaves: list[Any], layout: Layout, chunks: int) -> Batch | None:
        """Where the rows of a batch are that is to be cut; None: it is given whole."""
        marks = marked(self._model, leaves, layout, self._options.dynamic)
        if self.first is None:
            batch = choose_batch(self._model, leaves, layout, marks)
        else:
            batch = batch_of(leaves, layout, self.like(leaves, layout), marks)
        if self._splits:
            batch = self._splits.applied(batch, leaves, layout)
        if batch is not None and chunks > 1:
            for held in ragged_lists(batch, leaves, layout, self._splits):
                refuse_ragged(leaves, argument_names(self._model, layout), held)
        return without_ragged(batch, leaves, layout, self._splits)

    def where_inputs_are(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        """Where the model is recorded: the stages may have spread it over devices."""
        leaves, _ = flatten((args, dict(kwargs)))
        device = next((x.device for x in leaves if isinstance(x, Tensor)), self._options.devices[0])
        tensors = [*self._model.parameters(), *self._model.buffers()]
        return together(tensors, torch.device(device))


def _rows(leaves: Sequence[Any], batch: Batch, chunks: int) -> int:
    """Rows of the first micro-batch, but two at least.

    No input that is given whole may look as if it had them.
    """
    rows = max(2, -(-batch.size // min(chunks, batch.size)))
    given = zip(leaves, batch.dims, strict=True)
    whole = [leaf for leaf, dim in given if dim is None and isinstance(leaf, Tensor)]
    others = {n for leaf in whole for n in leaf.shape} - {batch.size}
    while rows in others:
        rows += 1
    return rows


def _ranks(leaves: Sequence[Any]) -> tuple[int | None, ...]:
    """The numbers of dimensions of tensors, or of what is known of them; None for other values."""
    return tuple(
        len(leaf.shape) if isinstance(leaf, Tensor | TensorSpec) else None for leaf in leaves
    )
