"""`trace`: a module and example arguments → a `Capture`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fxpipe.capture.batch import Batch, find_batch, resized
from fxpipe.capture.fallback import Decisions, KeepWhole
from fxpipe.capture.leaves import is_layer
from fxpipe.capture.naming import qualified_class
from fxpipe.capture.record import Recording, record
from fxpipe.capture.results import output_leaves
from fxpipe.capture.signature import Layout, argument_names, flatten
from fxpipe.capture.situation import situation_of
from fxpipe.capture.specs import tensor_spec
from fxpipe.capture.unify import unify
from fxpipe.errors import CaptureError
from fxpipe.ir.capture import Capture, LeafReport
from fxpipe.ir.signature import CallSignature, InputLeaf

_ROUNDS = 60


def trace(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str = "auto",
    verify: bool = True,
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

    Raises:
        CaptureError: if the model cannot be recorded; the message names the module, the user's source
            line, the operation, the reason and what to do.
    """
    leaves, layout = flatten((tuple(args), dict(kwargs or {})))
    batch = find_batch(leaves)
    decisions = Decisions(whole_root=is_layer(model))
    recording, rows = _record_both(model, leaves, layout, batch, decisions)
    return Capture(
        graph=recording.graph,
        spans=recording.spans,
        signature=_signature(model, recording, layout, batch, leaves),
        constants=recording.constants,
        model_class=qualified_class(model),
        training=model.training,
        mode="real",
        batch_size=rows,
        leaves=_reports(model, decisions),
        situation=situation_of(model, args, kwargs),
    )


def _record_both(
    model: nn.Module,
    leaves: list[Any],
    layout: Layout,
    batch: Batch | None,
    decisions: Decisions,
) -> tuple[Recording, int]:
    if batch is None:
        return record(model, leaves, layout, decisions), 1
    sizes = (batch.recorded, batch.other)
    for _ in range(_ROUNDS):
        known = len(decisions)
        second = record(model, resized(leaves, batch, sizes[1]), layout, decisions)
        first = record(model, resized(leaves, batch, sizes[0]), layout, decisions)
        if len(decisions) != known:
            continue
        try:
            unify(first, second, batch, sizes)
        except KeepWhole as reason:
            decisions.learn(reason, is_layer=False)
            continue
        first.outputs = list(output_leaves(first.outputs, second.outputs, sizes))
        return first, sizes[0]
    raise CaptureError("the two recordings at different batch sizes never agree")


def _signature(
    model: nn.Module,
    recording: Recording,
    layout: Layout,
    batch: Batch | None,
    leaves: list[Any],
) -> CallSignature:
    dims = batch.dims if batch is not None else (None,) * len(leaves)
    names = argument_names(model, layout)
    inputs = []
    for name, leaf, node, dim in zip(
        names, recording.inputs, recording.placeholders, dims, strict=True
    ):
        if node is None:
            inputs.append(InputLeaf(name, None, None, None, leaf))
        else:
            inputs.append(InputLeaf(name, node.name, tensor_spec(leaf), dim))
    return CallSignature(layout, tuple(inputs), recording.layout, tuple(recording.outputs))


def _reports(model: nn.Module, decisions: Decisions) -> tuple[LeafReport, ...]:
    return tuple(
        LeafReport(path, qualified_class(model.get_submodule(path)), why.reason, why.source)
        for path, why in decisions.leaves.items()
    )
