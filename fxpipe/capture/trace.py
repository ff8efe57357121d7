"""`trace`: a module and example arguments → a `Capture`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import nn

from fxpipe import ops
from fxpipe.capture.batch import Batch, given_batch, repeated, resized
from fxpipe.capture.fallback import Decisions, KeepWholeError
from fxpipe.capture.leaves import is_layer
from fxpipe.capture.naming import qualified_class
from fxpipe.capture.record import Recording, record, record_once
from fxpipe.capture.reports import leaf_reports
from fxpipe.capture.results import output_leaves
from fxpipe.capture.rows import choose_batch
from fxpipe.capture.signature import Layout, argument_names, flatten
from fxpipe.capture.situation import situation_of
from fxpipe.capture.specs import tensor_spec
from fxpipe.capture.unify import compare_data, confirm, is_certain, unify
from fxpipe.capture.verify import verify as verify_capture
from fxpipe.errors import CaptureError
from fxpipe.ir.capture import Capture
from fxpipe.ir.signature import CallSignature, InputLeaf, OutputLeaf

_ROUNDS: Final = 60
_MANY_PARAMETERS: Final = 1_000_000_000
"""From here on a run on data is too slow to be the first try."""


def trace(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str = "auto",
    verify: bool = True,
    batch_dims: Sequence[int | None] | None = None,
    may_be_whole: bool | None = None,
) -> Capture:
    """The graph of one run of a model, valid for every batch size.

    The model runs on the example arguments at two batch sizes; what differs between the runs follows
    the batch size. The model, its buffers and the random generators are left as they were.

    Args:
        model: any module; it is not changed.
        args: example positional arguments, a micro-batch of them.
        kwargs: example keyword arguments.
        mode: ``"real"`` runs on data, ``"fake"`` on tensors without data; ``"auto"`` runs on data
            where the parameters have some and are not too many, and otherwise, or where that fails,
            in the other way.
        verify: compare the graph with the model on the example: outputs, gradients, buffers and the
            use of random numbers.
        batch_dims: along which dimension each leaf of ``(args, kwargs)`` has its rows (see
            `fxpipe.capture.signature.flatten`), None for leaves that every micro-batch is given whole.
            None: the inputs with the most common size along dimension 0 (or 1, where a module of
            the model takes sequences first) have rows.
        may_be_whole: whether, if the model fails on another number of rows than the example's (as
            with the nodes of a graph), no input has rows and the capture holds for the example's
            sizes. None: if `batch_dims` is None.

    Raises:
        ValueError: if there is no such mode, or `batch_dims` does not fit the arguments.
        CaptureError: if the model cannot be recorded; the message names the module, the user's source
            line, the operation, the reason and what to do.
    """
    if mode not in ("auto", "real", "fake"):
        raise ValueError(f"mode is 'auto', 'real' or 'fake', not {mode!r}")
    leaves, layout = flatten((tuple(args), dict(kwargs or {})))
    batch = (
        choose_batch(model, leaves, layout)
        if batch_dims is None
        else given_batch(leaves, batch_dims)
    )
    call = _Call(model, leaves, layout, batch)
    may_be_whole = batch_dims is None if may_be_whole is None else may_be_whole
    capture = _captured(call, mode, verify, may_be_whole)
    return replace(capture, situation=situation_of(model, args, kwargs, like=capture))


class _OtherRowsError(Exception):
    """The model fails on another number of rows than the example has: with `error`."""

    def __init__(self, error: Exception, rows: int, batch: Batch) -> None:
        super().__init__(
            f"To record it for every batch size, the model was run on {rows} rows, where the example "
            f"has {batch.size}. If it takes no batches (the nodes of a graph, say, are no rows), its "
            "inputs must be given whole: in a pipeline by one micro-batch (chunks=1)."
        )
        self.error = error


@dataclass
class _Call:
    """The model and its example arguments, taken apart."""

    model: nn.Module
    leaves: list[Any]
    layout: Layout
    batch: Batch | None

    @property
    def has_no_data(self) -> bool:
        """Whether the model or its inputs are on the meta device."""
        held = [*self.model.parameters(), *self.model.buffers(), *self.leaves]
        return any(isinstance(tensor, torch.Tensor) and tensor.is_meta for tensor in held)


def _captured(call: _Call, mode: str, verify: bool, may_be_whole: bool) -> Capture:
    """A capture for every batch size, or, where that may be, for the example's sizes."""
    try:
        return _cascade(call, mode, verify)
    except _OtherRowsError as failed:
        if not may_be_whole:
            failed.error.add_note(str(failed))
            raise failed.error from None
    return _cascade(replace(call, batch=None), mode, verify)


def _cascade(call: _Call, mode: str, verify: bool) -> Capture:
    """The first capture that comes about.

    Raises:
        CaptureError: the first mode's, with a note of what the other one said.
    """
    if mode != "auto":
        return _capture(call, mode, verify)
    first, second = (
        ("real", "fake")
        if not call.has_no_data and _is_affordable(call.model)
        else ("fake", "real")
    )
    try:
        return _capture(call, first, verify)
    except CaptureError as error:
        if call.has_no_data:
            raise
        try:
            return _capture(call, second, verify)
        except Exception as other:
            error.add_note(f"A {second} run fails as well: {type(other).__name__}: {other}")
        raise


def _is_affordable(model: nn.Module) -> bool:
    return sum(parameter.numel() for parameter in model.parameters()) < _MANY_PARAMETERS


def _capture(call: _Call, mode: str, verify: bool) -> Capture:
    decisions = Decisions(whole_root=is_layer(call.model))
    recording, outputs, rows = _record_both(call, decisions, mode)
    capture = Capture(
        graph=recording.graph,
        spans=recording.spans,
        signature=_signature(call, recording, outputs),
        constants=recording.constants,
        model_class=qualified_class(call.model),
        training=call.model.training,
        mode=mode,
        batch_size=rows,
        leaves=leaf_reports(call.model, recording.graph, decisions),
    )
    if verify and not call.has_no_data:
        verify_capture(
            capture, call.model, call.leaves, call.layout, lambda: _replay(call, decisions)
        )
    return capture


def _replay(call: _Call, decisions: Decisions) -> Mapping[str, Any]:
    """The value of every node in a run on the example's data."""
    once = record_once(call.model, call.leaves, call.layout, decisions, "real", keep_values=True)
    return once.values


def _record_both(
    call: _Call, decisions: Decisions, mode: str
) -> tuple[Recording, tuple[OutputLeaf, ...], int]:
    """The recording at one batch size, compared with one at another; and its output leaves."""
    batch = call.batch
    if batch is None:
        recording = record(call.model, call.leaves, call.layout, decisions, mode)
        return recording, tuple(output_leaves(recording.outputs, None, (1, 1))), 1
    sizes = (batch.recorded, batch.other)

    def recorded(rows: int) -> Recording:
        return _record_rows(call, batch, rows, decisions, mode)

    for _ in range(_ROUNDS):
        known = len(decisions)
        second, first = recorded(sizes[1]), recorded(sizes[0])
        if len(decisions) != known:
            continue
        try:
            unify(first, second, batch, sizes)
            if not is_certain(first):
                confirm(first, recorded(batch.third), batch, (sizes[0], batch.third))
            if mode == "real" and decisions.leaves:
                _try_other_data(call, decisions, first, batch)
        except KeepWholeError as reason:
            if sizes[1] < sizes[0]:
                # Some of the rows may decide otherwise than all of them; repeated ones decide alike.
                sizes = (sizes[0], 2 * sizes[0])
            else:
                decisions.learn(reason, is_layer=False)
            continue
        return first, tuple(output_leaves(first.outputs, second.outputs, sizes)), sizes[0]
    raise CaptureError("the two recordings at different batch sizes never agree")


def _record_rows(
    call: _Call, batch: Batch, rows: int, decisions: Decisions, mode: str
) -> Recording:
    """A recording with another number of rows.

    Raises:
        _OtherRowsError: if the model fails on them.
    """
    leaves = resized(call.leaves, batch, rows)
    try:
        return record(call.model, leaves, call.layout, decisions, mode)
    except CaptureError:
        raise
    except Exception as error:
        if rows == batch.size:
            raise
        raise _OtherRowsError(error, rows, batch) from error


def _try_other_data(call: _Call, decisions: Decisions, first: Recording, batch: Batch) -> None:
    """Look for numbers that depend on data and come out of a module kept whole, where no rule sees it.

    The model runs on as many copies of the example's first row, and of its last one. This finds what
    the rows differ in; checked decisions on inputs may differ, and a model may refuse such a batch.

    Raises:
        KeepWholeError: if one is found.
    """
    if batch.size < 2 or any(node.target is ops.check_value for node in first.graph.nodes):
        return
    for row in (0, batch.size - 1):
        leaves = repeated(call.leaves, batch, row, batch.recorded)
        try:
            other = record_once(call.model, leaves, call.layout, decisions, "real")
        except Exception:  # the model may refuse a batch of equal rows: then they tell nothing
            continue
        compare_data(first, other, batch, batch.recorded)


def _signature(call: _Call, recording: Recording, outputs: tuple[OutputLeaf, ...]) -> CallSignature:
    batch = call.batch
    dims = batch.dims if batch is not None else (None,) * len(call.leaves)
    names = argument_names(call.model, call.layout)
    inputs = []
    for name, leaf, node, dim in zip(
        names, recording.inputs, recording.placeholders, dims, strict=True
    ):
        if node is None:
            inputs.append(InputLeaf(name, None, None, None, leaf))
        else:
            inputs.append(InputLeaf(name, node.name, tensor_spec(leaf), dim))
    return CallSignature(call.layout, tuple(inputs), recording.layout, outputs)
