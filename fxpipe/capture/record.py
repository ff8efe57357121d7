"""One run of a model, recorded; started again for every module that turns out to stay whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError

from fxpipe import interrupts
from fxpipe.capture.copies import copied
from fxpipe.capture.draws import PythonDraws
from fxpipe.capture.fake import FakeRecorder
from fxpipe.capture.fallback import Decisions, FallbackError, RefusedError, StoresError
from fxpipe.capture.formulas import Formula
from fxpipe.capture.leaves import is_layer
from fxpipe.capture.leftovers import Leftovers, changed_tensors, fixed_in, left_by
from fxpipe.capture.parts import without_unread_parts
from fxpipe.capture.patches import patched
from fxpipe.capture.recorder import Recorder
from fxpipe.capture.remedies import ITERATOR, META
from fxpipe.capture.restore import ModelState, Modes, Randomness
from fxpipe.capture.signature import Layout, argument_names, flatten
from fxpipe.capture.spans import close_spans
from fxpipe.capture.values import Dependence
from fxpipe.errors import CaptureError
from fxpipe.fake_model import FakeModel
from fxpipe.interrupts import Interrupts
from fxpipe.ir.capture import Span
from fxpipe.uncompiled import uncompiled

_RESTARTS = 200


@dataclass
class Recording:
    """What one run left behind.

    Attributes:
        graph: with placeholders for the tensor leaves of the arguments.
        placeholders: node of every input leaf, None for leaves that are no tensors.
        inputs: the leaves themselves.
        outputs: the output leaves, in order of the output node's tuple.
        layout: of the result.
        drew_python: whether ``random`` or NumPy's generator was used.
        drew_idly: whether it was, for numbers that change nothing: the graph does not draw them.
        state: attributes with numbers, texts or None that the run has changed, outside of leaves: path
            of the module → name of the attribute.
        tensors: attributes in which the run has put other tensors: path of the module → their names.
        fixed: nodes that do the same in every run, if `tensors` has any.
        left: what the run before has left.
        counts: whether some of those that the model has are numbers.
        formulas: nodes that compute a number from the batch size; added by `unify`.
        values: node name → copies of the tensors in its value, if they were kept.
    """

    graph: torch.fx.Graph
    spans: tuple[Span, ...]
    constants: dict[str, Any]
    placeholders: list[torch.fx.Node | None]
    inputs: list[Any]
    outputs: list[Any]
    layout: Layout
    drew_python: bool
    drew_idly: bool
    state: dict[str, str]
    counts: bool
    tensors: dict[str, tuple[str, ...]]
    fixed: frozenset[torch.fx.Node]
    left: Leftovers
    values: dict[str, Any]
    formulas: dict[torch.fx.Node, Formula] = field(default_factory=dict)

    @property
    def has_state(self) -> bool:
        """Whether the run has changed attributes, so that the next one may go on otherwise."""
        return bool(self.state or self.tensors)


def record(
    model: nn.Module, leaves: Sequence[Any], layout: Layout, decisions: Decisions, mode: str
) -> Recording:
    """A recording of ``model(*args, **kwargs)``; `decisions` grow by what had to stay whole.

    Args:
        leaves: of ``(args, kwargs)``, put together by `layout`.
        mode: ``"real"`` or ``"fake"``.

    Raises:
        CaptureError: if only the whole model could stay whole.
    """
    for _ in range(_RESTARTS):
        try:
            recording = record_once(model, leaves, layout, decisions, mode)
            if not recording.drew_python or decisions.watch_random:
                return recording
            decisions.watch_random = True
        except FallbackError as reason:
            decisions.learn(reason, is_layer(model.get_submodule(reason.path)))
            _spread(decisions, model, reason)
    raise CaptureError(f"recording was started {_RESTARTS} times and came to no end")


def _spread(decisions: Decisions, model: nn.Module, reason: FallbackError) -> None:
    """Keep all modules of a class whole once two of them had to be, for the same line.

    Otherwise recording would start again for every layer of a deep model. The same where what modules
    keep is read outside of them.
    """
    cls = type(model.get_submodule(reason.path))
    if reason.path in decisions.inside:
        for path, module in model.named_modules():
            if type(module) is cls and isinstance(decisions.leaves.get(path), StoresError):
                del decisions.leaves[path]
                decisions.inside[path] = reason
        return
    alike = [
        path
        for path, why in decisions.leaves.items()
        if why.source == reason.source and type(model.get_submodule(path)) is cls
    ]
    if len(alike) < 2 or "" in alike:
        return
    for path, module in model.named_modules():
        if type(module) is cls and path not in decisions.inside:
            decisions.leaves.setdefault(path, reason)


def record_once(
    model: nn.Module,
    leaves: Sequence[Any],
    layout: Layout,
    decisions: Decisions,
    mode: str,
    keep_values: bool = False,
    runs: int = 1,
    ahead: int = 0,
) -> Recording:
    """A recording under fixed decisions; the model and all generators are left as they were.

    Args:
        keep_values: keep a copy of the value of every node.
        runs: how often the model runs; the last run is the one recorded.
        ahead: by how many runs numbers in attributes are moved on before it, as the first run changed
            them.

    Raises:
        FallbackError: if another decision is needed.
    """
    with interrupts.held() as interrupt, ExitStack() as stack:
        held = stack.enter_context(ModelState(model))
        for context in (Randomness(), Modes(), uncompiled()):
            stack.enter_context(context)
        fakes = stack.enter_context(FakeModel(model)) if mode == "fake" else None
        left = Leftovers()
        for run in range(runs):
            if run and ahead:
                held.move_on(ahead)
            recorder = _recorder(model, decisions, held, fakes)
            recorder.values.left = left
            given = [copied(leaf) if fakes is None else _fake_copy(leaf, fakes) for leaf in leaves]
            if fakes is not None and not run:
                stack.enter_context(fakes.mode)
            placeholders = _placeholders(recorder, model, given, layout)
            if isinstance(recorder, FakeRecorder):
                recorder.inputs = _by_placeholder(placeholders, leaves)
            recorder.script.kept = {} if keep_values else None
            draws = PythonDraws(
                held.generators, decisions.watch_random, count_all=decisions.count_draws
            )
            recorder.modules.draws = draws
            recorder.leaf_calls.held = held.now() if run else held.held
            outputs, result = _run(recorder, model, layout.unflatten(given), interrupt)
            if run + 1 < runs:
                left = left_by(recorder, held)
        drew, state, counts = draws.any, _state(model, held, decisions), held.counts
        tensors = changed_tensors(model, held)
        fixed = fixed_in(recorder, held) if tensors else frozenset()
    recorder.values.refresh()
    script = recorder.script
    spans = without_unread_parts(script.graph, recorder.modules.spans)
    return Recording(
        graph=script.graph,
        spans=close_spans(spans, script.graph),
        constants=script.constants,
        placeholders=placeholders,
        inputs=given,
        outputs=outputs,
        layout=result,
        drew_python=drew,
        drew_idly=draws.passed_over,
        state=state,
        counts=counts,
        tensors=tensors,
        fixed=fixed,
        left=left,
        values=script.kept or {},
    )


def _recorder(
    model: nn.Module, decisions: Decisions, held: ModelState, fakes: FakeModel | None
) -> Recorder:
    if fakes is None:
        return Recorder(model, decisions, held.originals)
    return FakeRecorder(model, decisions, fakes, held.originals)


def _state(model: nn.Module, held: ModelState, decisions: Decisions) -> dict[str, str]:
    """See `Recording.state`."""
    changed = {id(module): name for module, name in held.changed_scalars()}
    if not changed:
        return {}
    return {
        path: changed[id(module)]
        for path, module in model.named_modules()
        if id(module) in changed
        and not any(path == leaf or path.startswith(f"{leaf}.") for leaf in decisions.leaves)
    }


def _run(
    recorder: Recorder, model: nn.Module, call: Any, interrupt: Interrupts
) -> tuple[list[Any], Layout]:
    args, kwargs = call
    recorder.interrupts = interrupt
    try:
        draws = recorder.modules.draws.watched(recorder.script.sources)
        with patched(recorder), recorder.watch, recorder, draws, interrupt.allowed():
            result = model(*args, **kwargs)
    except Exception as error:
        if recorder.failure is not None:  # something in between made another error of it
            raise recorder.failure from None
        if isinstance(error, FakeTensorDeviceMismatchError) and "meta" in str(error):
            reason = f"its tensors are not all on the meta device, as some are ({error})"
            raise RefusedError(reason, "", "", remedy=META) from error
        raise
    finally:
        recorder.settings.put_back()
    if recorder.failure is not None:  # the user's code caught it
        raise recorder.failure
    recorder.modules.settle()
    if isinstance(result, Iterator):
        reason = f"its result is a {type(result).__name__}, which computes when it is read"
        raise RefusedError(reason, "", recorder.script.sources.forward_of(model), remedy=ITERATOR)
    outputs, layout = flatten(result, shared=True)
    recorder.script.graph.output(tuple(map(recorder.values.result, outputs)))
    return outputs, layout


def _by_placeholder(
    placeholders: Sequence[torch.fx.Node | None], leaves: Sequence[Any]
) -> dict[torch.fx.Node, Any]:
    pairs = zip(placeholders, leaves, strict=True)
    return {node: leaf for node, leaf in pairs if node is not None}


def _fake_copy(leaf: Any, fakes: FakeModel) -> Any:
    return fakes.fake(copied(leaf)) if isinstance(leaf, torch.Tensor) else leaf


def _placeholders(
    recorder: Recorder, model: nn.Module, leaves: Sequence[Any], layout: Layout
) -> list[torch.fx.Node | None]:
    nodes: list[torch.fx.Node | None] = []
    for name, leaf in zip(argument_names(model, layout), leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            node = recorder.script.placeholder(name, leaf)
            recorder.values.bind(leaf, node, Dependence.INPUTS)
            nodes.append(node)
        else:
            nodes.append(None)
    return nodes
