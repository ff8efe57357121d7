"""`trace`: a module and example arguments → a `Capture`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from torch import nn

from fxpipe.capture.attempts import OtherRowsError
from fxpipe.capture.axes import Dynamic, free_axes, marked
from fxpipe.capture.batch import given_batch
from fxpipe.capture.call import Call
from fxpipe.capture.elsewhere import Elsewhere
from fxpipe.capture.fallback import Decisions, FallbackError, root_error
from fxpipe.capture.general import record_general
from fxpipe.capture.leaves import is_layer
from fxpipe.capture.naming import qualified_class
from fxpipe.capture.ragged import without_ragged
from fxpipe.capture.record import Recording, record_once
from fxpipe.capture.refusals import refuse
from fxpipe.capture.reports import leaf_reports
from fxpipe.capture.rows import choose_batch
from fxpipe.capture.signature import argument_names, flatten
from fxpipe.capture.situation import situation_of
from fxpipe.capture.specs import refuse_nested, tensor_spec
from fxpipe.capture.verify import verify as verify_capture
from fxpipe.errors import CaptureError
from fxpipe.ir.capture import Capture
from fxpipe.ir.signature import CallSignature, InputLeaf, OutputLeaf
from fxpipe.outside_inference import outside_inference

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
    dynamic: Dynamic | None = None,
) -> Capture:
    """The graph of one run of a model, valid for every batch size at which it takes the same steps.

    The model runs on the example arguments at two batch sizes; what differs between the runs follows
    the batch size. `Capture.rows` says between which sizes that is known. The model, its buffers and the
    random generators are left as they were.

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
        dynamic: other dimensions that vary from call to call: name of an input (see
            `fxpipe.ir.signature.InputLeaf`) → dimension → a name; dimensions of one name have one
            size. The model is recorded at more sizes of them. ``"16*width"``: all sizes are multiples
            of 16. Arguments that the example leaves out are passed over.

    Raises:
        TypeError: if `dynamic` marks what is no tensor.
        ValueError: if there is no such mode, or `batch_dims` or `dynamic` do not fit the arguments.
        CaptureError: if the model cannot be recorded; the message names the module, the user's source
            line, the operation, the reason and what to do.
    """
    if mode not in ("auto", "real", "fake"):
        raise ValueError(f"mode is 'auto', 'real' or 'fake', not {mode!r}")
    refuse(model)
    leaves, layout = flatten((tuple(args), dict(kwargs or {})))
    refuse_nested(*leaves)
    marks = marked(model, leaves, layout, dynamic)
    batch = (
        without_ragged(choose_batch(model, leaves, layout, taken=marks), leaves, layout)
        if batch_dims is None
        else given_batch(leaves, batch_dims)
    )
    call = Call(model, leaves, layout, batch, free_axes(marks, leaves, batch))
    may_be_whole = batch_dims is None if may_be_whole is None else may_be_whole
    with outside_inference(model):
        capture = _captured(call, mode, verify, may_be_whole)
    return replace(
        capture, situation=situation_of(model, args, kwargs, like=capture, dynamic=dynamic)
    )


def _captured(call: Call, mode: str, verify: bool, may_be_whole: bool) -> Capture:
    """A capture for every batch size, or, where that may be, for the example's sizes."""
    try:
        return _cascade(call, mode, verify)
    except OtherRowsError as failed:
        if not may_be_whole:
            raise _told(call, failed) from None
    return _cascade(replace(call, batch=None), mode, verify)


def _told(call: Call, failed: OtherRowsError) -> Exception:
    """The error with a note, which depends on whether the model fails on the example as well."""
    note = str(failed)
    try:
        call.recorded_once(Decisions(whole_root=is_layer(call.model)), "real", runs=1)
    except Exception as error:
        if type(error) is type(failed.error):
            note = failed.everywhere
    failed.error.add_note(note)
    return failed.error


def _cascade(call: Call, mode: str, verify: bool) -> Capture:
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
            same = str(other) == str(error)
            why = "for the same reason" if same else f"{type(other).__name__}: {other}"
            error.add_note(f"A {second} run fails as well{', ' if same else ': '}{why}")
        raise


def _is_affordable(model: nn.Module) -> bool:
    return sum(parameter.numel() for parameter in model.parameters()) < _MANY_PARAMETERS


def _capture(call: Call, mode: str, verify: bool) -> Capture:
    decisions = Decisions(whole_root=is_layer(call.model))
    general = record_general(call, decisions, mode)
    recording = general.recording
    capture = Capture(
        graph=recording.graph,
        spans=recording.spans,
        signature=_signature(call, recording, general.outputs),
        constants=recording.constants,
        model_class=qualified_class(call.model),
        training=call.model.training,
        mode=mode,
        batch_size=general.rows,
        ranges=general.ranges,
        rows=general.among,
        only_rows=general.only_rows,
        only_sizes=general.only_sizes,
        leaves=leaf_reports(call.model, recording.graph, decisions),
        recorded_from=weakref.ref(call.model),
        holds_at=Elsewhere(call, recording, decisions, mode),
    )
    if verify and not call.has_no_data:
        recorded = call.leaves_at(tuple(axis.size for axis in call.axes))
        for leaves in (recorded, general.elsewhere):
            if leaves is not None:
                _verify(capture, call, leaves, decisions, recording.drew_idly)
    return capture


def _verify(
    capture: Capture, call: Call, leaves: list[Any], decisions: Decisions, draws_idly: bool
) -> None:
    def replay() -> Mapping[str, Any]:
        """The value of every node in a run on the same data."""
        try:
            given = call.model, leaves, call.layout, decisions, "real"
            return record_once(*given, keep_values=True).values
        except FallbackError as reason:  # a run on data does what one without did not
            raise root_error(reason) from None

    verify_capture(capture, call.model, leaves, call.layout, replay, draws_idly=draws_idly)


def _signature(call: Call, recording: Recording, outputs: tuple[OutputLeaf, ...]) -> CallSignature:
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
            marks = tuple(
                sorted(
                    (d, axis.mark.label)
                    for axis in call.marked
                    for at, d in axis.places
                    if at == len(inputs)
                )
            )
            inputs.append(InputLeaf(name, node.name, tensor_spec(leaf), dim, dynamic=marks))
    return CallSignature(call.layout, tuple(inputs), recording.layout, outputs)
