"""One observation of a capture: a forward, a real backward through all of it, costs per node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from fxpipe.analysis.sharing import node_parameters

if TYPE_CHECKING:
    from torch.autograd.graph import GradientEdge, Node

    from fxpipe.analysis.meter import Meter
    from fxpipe.analysis.metered_run import MeteredRun
    from fxpipe.ir.capture import Capture


@dataclass
class Sample:
    """What one run cost: node → seconds, operations, bytes.

    `failure` says why there was no backward although autograd followed; `backward` is then empty.
    """

    forward: dict[str, float] = field(default_factory=dict)
    backward: dict[str, float] = field(default_factory=dict)
    flops: dict[str, int] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    failure: str = ""


def observe(
    capture: Capture,
    model: torch.nn.Module,
    run: MeteredRun,
    inputs: Sequence[Any],
    *,
    weights: bool = True,
    count_saved: bool = False,
) -> Sample:
    """Run forward, then backward if any output is differentiable; no ``.grad`` is touched.

    A backward that fails, as that of a model whose forward has used up its own graph (forces, by
    ``torch.autograd.grad``), costs nothing: the sample says why.

    Args:
        capture: what `run` runs.
        model: its parameters; they are read only.
        run: a fresh run.
        inputs: values of the placeholders.
        weights: whether backward makes the parameters' gradients too, and adds them to others of their
            size as a training step does; if not, only what must go on to earlier nodes.
        count_saved: look at what is saved for backward (which disturbs times).
    """
    made = _Forward(capture, model, run, inputs, count_saved)
    return made.backward(weights, keep=False)


def observe_both(
    capture: Capture, model: torch.nn.Module, run: MeteredRun, inputs: Sequence[Any]
) -> tuple[Sample, Sample]:
    """One forward that counts what is saved, and two backwards: with the parameters' gradients, without.

    For meters that only add up work: the second backward of a wall clock would run on warm memory.
    """
    made = _Forward(capture, model, run, inputs, count_saved=True)
    full = made.backward(weights=True, keep=True)
    return full, full if full.failure else made.backward(weights=False, keep=False)


class _Forward:
    """A forward that has run, with what its backward starts from."""

    def __init__(
        self,
        capture: Capture,
        model: torch.nn.Module,
        run: MeteredRun,
        inputs: Sequence[Any],
        count_saved: bool,
    ) -> None:
        self._capture, self._model, self._run = capture, model, run
        result = run.run_counting_saved(inputs) if count_saved else run.run(*inputs)
        self._outputs = _differentiable(tree_leaves(result))
        self._inputs = _differentiable(inputs)

    def backward(self, weights: bool, keep: bool) -> Sample:
        """What forward and one backward cost; `keep`: whether another one is to follow."""
        run = self._run
        sample = Sample(dict(run.forward), {}, run.flops, run.saved)
        outputs = self._outputs if keep else self._last()
        if not outputs:
            return sample
        parameters = [p for p in self._model.parameters() if p.requires_grad] if weights else []
        ends: list[torch.Tensor | GradientEdge] = [*parameters, *self._inputs]
        if not weights:
            ends += run.entries
        try:
            gradients = _backward(run, outputs, ends, sample.backward, keep)
        except Exception as error:  # whatever a backward of the user's raises; told by the caller
            sample.failure = f"{type(error).__name__}: {error}".splitlines()[0]
            return sample
        if weights:
            made = dict(zip(map(id, parameters), gradients, strict=False))
            _accumulate(self._capture, self._model, made, run.meter, sample.backward)
        return sample

    def _last(self) -> list[torch.Tensor]:
        """The outputs, held here no longer."""
        outputs, self._outputs = self._outputs, []
        return outputs


def _differentiable(leaves: Sequence[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _backward(
    run: MeteredRun,
    outputs: list[torch.Tensor],
    ends: list[torch.Tensor | GradientEdge],
    seconds: dict[str, float],
    keep: bool,
) -> Sequence[torch.Tensor | None]:
    """Gradients at `ends`; time from each autograd node's start to the next one's goes to its owner.

    What lies between two nodes, sums of gradients that meet above all, is thereby part of the earlier.
    """
    if not ends:
        return ()
    meter = run.meter
    starts: list[tuple[str | None, float]] = []

    def note(owner: str | None) -> Any:
        return lambda gradients: starts.append((owner, meter.now()))

    hooks = [node.register_prehook(note(run.owner(node))) for node in _graph_of(outputs)]
    try:
        ones = [torch.ones_like(output) for output in outputs]
        gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(
            outputs,
            ends,  # type: ignore[arg-type]  # tensors and edges mixed, which the engine takes
            ones,
            retain_graph=keep,
            allow_unused=True,
        )
        starts.append((None, meter.now()))
    finally:
        for hook in hooks:
            hook.remove()
    for (owner, start), (_, end) in pairwise(starts):
        if owner is not None:
            seconds[owner] = seconds.get(owner, 0.0) + end - start
    return gradients


def _graph_of(outputs: list[torch.Tensor]) -> list[Node]:
    """Every autograd node behind some tensors."""
    found: dict[Node, None] = {}
    waiting = [tensor.grad_fn for tensor in outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting.extend(following for following, _ in node.next_functions)
    return list(found)


def _is_expanded(gradient: torch.Tensor) -> bool:
    """Whether one number in memory stands for several, as in the gradient of a sum."""
    return gradient.layout is torch.strided and 0 in gradient.stride()


def _accumulate(
    capture: Capture,
    model: torch.nn.Module,
    gradients: dict[int, torch.Tensor | None],
    meter: Meter,
    seconds: dict[str, float],
) -> None:
    """Add each gradient to one of its size, as from the second micro-batch on; the readers share it."""
    readers: dict[int, list[str]] = {}
    for node, parameters in node_parameters(capture, model).items():
        for parameter in parameters:
            readers.setdefault(id(parameter), []).append(node)
    for key, nodes in readers.items():
        gradient = gradients.get(key)
        if gradient is None:
            continue
        held = gradient.clone() if _is_expanded(gradient) else gradient  # as `.grad` would be
        start = meter.now()
        held.add_(gradient)
        share = (meter.now() - start) / len(nodes)
        for node in nodes:
            seconds[node] = seconds.get(node, 0.0) + share
