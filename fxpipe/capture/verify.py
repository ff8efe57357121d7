"""A capture against the module it was recorded from: same bits out, same gradients, same effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import nn

from fxpipe import interrupts
from fxpipe.capture.containers import holds_tensors, tensors
from fxpipe.capture.copies import copied
from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.patches import without_checkpoints
from fxpipe.capture.restore import ModelState, Modes, Randomness, random_states
from fxpipe.capture.signature import Layout, flatten
from fxpipe.errors import CaptureError
from fxpipe.interrupts import Interrupts
from fxpipe.ir.capture import Capture


@dataclass
class _Outcome:
    """What one run of the model or the graph left behind."""

    outputs: list[Any]
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    random: tuple[Any, ...]


def verify(
    capture: Capture,
    model: nn.Module,
    leaves: Sequence[Any],
    layout: Layout,
    replay: Callable[[], Mapping[str, Any]],
    *,
    draws_idly: bool = False,
) -> None:
    """Compare a capture with its model on example arguments; both are left as they were.

    On CPU outputs, gradients (of a weighted sum of the differentiable outputs), buffers and the state
    of torch's generator are equal bit for bit. On accelerators, where kernels may add in any order,
    what eager differs from itself in two runs is allowed.

    Args:
        leaves: of ``(args, kwargs)``, put together by `layout`.
        replay: records the module once more; node name → a copy of its value.
        draws_idly: whether the module draws from ``random``, in vain, and the graph does not.

    Raises:
        CaptureError: names what differs, and the first node whose value does.
    """
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    runner = GraphRunner.of(capture, model)
    written = frozenset(capture.changed_state)

    def call_module(copies: list[Any]) -> Sequence[Any]:
        return _call(model, layout, copies)

    def call_graph(copies: list[Any]) -> Sequence[Any]:
        return runner.run([leaf for leaf in copies if isinstance(leaf, torch.Tensor)])

    runs = [call_module, call_graph]
    if any(tensor.device.type != "cpu" for tensor in given):
        runs.append(call_module)
    outcomes: list[_Outcome] = []
    with (
        interrupts.held() as interrupt,
        ModelState(model, written) as state,
        without_checkpoints(),  # once: to patch a class that has many subclasses takes time
    ):
        for run in runs:
            if outcomes:
                state.put_back()
            outcomes.append(_outcome(model, leaves, run, written, interrupt))
    eager, graph, slack = outcomes[0], outcomes[1], outcomes[2] if len(outcomes) > 2 else None
    if draws_idly:
        graph.random = (*graph.random[:-1], eager.random[-1])
    problem = _difference(eager, graph, slack)
    if problem is not None:
        where = _first_difference(capture, model, leaves, replay())
        raise CaptureError(
            f"the captured graph of {capture.model_class} does not compute what the module computes: "
            f"{problem}\n  {where}\n  What to do: {_advice(model)}. (With verify=False the graph "
            "would be taken with this difference: what it computes is not what the module computes.)"
        )


def _advice(model: nn.Module) -> str:
    if model._backward_hooks or model._backward_pre_hooks:
        return (
            "the model itself has backward hooks, which change gradients of the whole call, and no "
            "stage runs it as a whole: put them on modules inside, or remove them"
        )
    return (
        "keep the module named here out of the way (a module that decides on data or keeps state in "
        "Python objects can be made a submodule of its own)"
    )


def _call(model: nn.Module, layout: Layout, leaves: Sequence[Any]) -> list[Any]:
    args, kwargs = layout.unflatten(leaves)
    return flatten(model(*args, **kwargs), shared=True)[0]


def _outcome(
    model: nn.Module,
    leaves: Sequence[Any],
    run: Callable[[list[Any]], Sequence[Any]],
    written: Set[str],
    interrupt: Interrupts,
) -> _Outcome:
    """What a run leaves behind; the model is to be put back by the caller."""
    copies = [copied(leaf) for leaf in leaves]
    with Randomness(), Modes():
        with interrupt.allowed():
            outputs = list(run(copies))
        random = random_states()
        parameters = dict(model.named_parameters())
        state = [*model.named_buffers(), *((n, p) for n, p in parameters.items() if n in written)]
        buffers = {name: held.detach().clone() for name, held in state}
        sources = _differentiable(parameters, copies)
        with interrupt.allowed():
            gradients = _gradients(outputs, sources)
    return _Outcome(
        [out.detach() if isinstance(out, torch.Tensor) else out for out in outputs],
        gradients,
        buffers,
        random,
    )


def _differentiable(
    parameters: Mapping[str, torch.Tensor], leaves: Sequence[Any]
) -> dict[str, torch.Tensor]:
    sources = {name: p for name, p in parameters.items() if p.requires_grad}
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            sources[f"input {position}"] = leaf
    return sources


def _gradients(
    outputs: Sequence[Any], sources: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor | None]:
    """Gradients of the differentiable outputs, each weighted by its own ramp; ``.grad`` stays."""
    roots = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
    if not roots or not sources:
        return {}
    ramps = [_ramp(root) for root in roots]
    try:
        found = torch.autograd.grad(roots, list(sources.values()), ramps, allow_unused=True)
    except Exception as error:  # a model for inference may have no backward: nor has its graph
        return {f"backward that fails: {type(error).__name__}": None}
    return dict(zip(sources, found, strict=True))


def _ramp(root: torch.Tensor) -> torch.Tensor:
    """Weights that tell elements apart, so that no gradient vanishes in a sum."""
    count = max(root.numel(), 1)
    values = torch.arange(root.numel(), device=root.device, dtype=torch.float32) / count + 0.5
    return values.reshape(root.shape).to(root.dtype)


# -- comparing -------------------------------------------------------------------------------------


def _difference(eager: _Outcome, graph: _Outcome, slack: _Outcome | None) -> str | None:
    if len(eager.outputs) != len(graph.outputs):
        return f"{len(graph.outputs)} results instead of {len(eager.outputs)}"
    for position, (one, two) in enumerate(zip(eager.outputs, graph.outputs, strict=True)):
        other = slack.outputs[position] if slack else one
        if not same(one, two, other):
            return f"result {position} differs"
    for kind in ("gradients", "buffers"):
        ones, twos = getattr(eager, kind), getattr(graph, kind)
        others = getattr(slack, kind) if slack else ones
        if list(ones) != list(twos):
            return f"{kind} of {sorted(set(ones) ^ set(twos))} are found in one of them only"
        for name, one in ones.items():
            if not same(one, twos[name], others[name]):
                return f"{kind[:-1]} of {name} differs"
    if not all(map(same, eager.random, graph.random)):
        return "it draws other random numbers"
    return None


def same(one: Any, two: Any, again: Any = None) -> bool:
    """Whether two values are equal bit for bit, or as close as `one` is to itself in another run."""
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        if one.shape != two.shape or one.dtype != two.dtype:
            return False
        return _same_tensor(one.detach(), two.detach(), again)
    if isinstance(one, torch.Tensor) or isinstance(two, torch.Tensor):
        return False
    if isinstance(one, bool | int | float | str | type(None)):
        return bool(one == two or (one != one and two != two))
    return type(one) is type(two)


def _same_tensor(one: torch.Tensor, two: torch.Tensor, again: Any) -> bool:
    if one.layout is not torch.strided:
        one, two = one.coalesce().to_dense(), two.coalesce().to_dense()
    if torch.equal(one, two):
        return True
    if one.is_floating_point() and torch.equal(one.isnan(), two.isnan()):
        one, two = one.nan_to_num(), two.nan_to_num()
        if torch.equal(one, two):
            return True
    if not isinstance(again, torch.Tensor) or one.device.type == "cpu":
        return False
    noise = (one.double() - again.detach().double()).abs().max()
    return bool((one.double() - two.double()).abs().max() <= 4 * noise)


# -- the first node that differs -------------------------------------------------------------------


def _first_difference(
    capture: Capture, model: nn.Module, leaves: Sequence[Any], recorded: Mapping[str, Any]
) -> str:
    """Where the graph first computes a value that the recorded run did not have there."""
    comparing = _Comparing(capture, model, recorded)
    copies = [copied(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    with (
        interrupts.held() as interrupt,
        ModelState(model, capture.changed_state),
        Randomness(),
        interrupt.allowed(),
    ):
        comparing.run(copies)
    if comparing.found is None:
        return "no node on its own differs: the module computes otherwise while it is recorded"
    node = comparing.found
    path = node.meta["path"] or "the model's own forward"
    return f"first node that differs: {node.name}, in {path}, at {node.meta['source']}"


class _Comparing(GraphRunner):
    def __init__(self, capture: Capture, model: nn.Module, recorded: Mapping[str, Any]) -> None:
        super().__init__(capture.graph, model, capture.constants)
        self._recorded = recorded
        self.found: torch.fx.Node | None = None

    def run_node(self, node: torch.fx.Node) -> Any:
        value = super().run_node(node)
        if self.found is None and node.name in self._recorded and holds_tensors(value):
            expected = tensors(self._recorded[node.name])
            if not all(same(one, two) for one, two in zip(expected, tensors(value), strict=False)):
                self.found = node
        return value
