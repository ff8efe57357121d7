"""Stage programs against the model they were made of."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from fxpipe.analysis.cuts import legal_cuts
from fxpipe.capture.signature import flatten
from fxpipe.capture.trace import trace
from fxpipe.codegen.generate import generate
from fxpipe.ir.capture import Capture
from fxpipe.portals.edges import link
from tests.builders import load_stages, plan_at, run_stages


def assert_cuts_are_exact(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Capture:
    """Outputs, gradients and buffers are eager's bits: whole, at every legal cut, at pairs of them."""
    kwargs = dict(kwargs or {})
    capture = trace(model, args, kwargs)
    given = _placeholders(capture, args, kwargs)
    observe = _Observer(model)
    expected = observe(lambda: model(*args, **kwargs))
    cuts = legal_cuts(capture)
    pairs = itertools.combinations(cuts[:: max(1, len(cuts) // 6)], 2)
    for at in [(), *((cut,) for cut in cuts), *pairs]:
        starts = [capture.body[index].name for index in at]
        plan = plan_at(capture, *starts)
        graph = link(capture, plan)
        programs = generate(capture, plan, graph, model)
        stages = load_stages(programs, model, capture)
        found = observe(partial(run_stages, stages, programs, graph, given))
        _compare(found, expected, starts)
    return capture


class _Observer:
    """Runs something on the model as it was at the start, and looks at all that it leaves behind."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._state = copy.deepcopy(model.state_dict())
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def __call__(self, run: Callable[[], Any]) -> dict[str, Any]:
        self._model.load_state_dict(self._state)
        torch.manual_seed(3)
        outputs, _ = flatten(run())
        flowing = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
        weights = [torch.linspace(0.5, 1.5, out.numel()).view(out.shape) for out in flowing]
        loss = sum((out * weight).sum() for out, weight in zip(flowing, weights, strict=True))
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        buffers = [buffer.clone() for buffer in self._model.buffers()]
        return {"outputs": outputs, "gradients": gradients, "buffers": buffers}


def _placeholders(
    capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    leaves, _ = flatten((args, kwargs))
    return {
        leaf.placeholder: value
        for leaf, value in zip(capture.signature.inputs, leaves, strict=True)
        if leaf.placeholder is not None
    }


def _compare(found: dict[str, Any], expected: dict[str, Any], starts: list[str]) -> None:
    for kind, values in expected.items():
        assert len(found[kind]) == len(values)
        for index, (a, b) in enumerate(zip(found[kind], values, strict=True)):
            same = torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b
            assert same, f"cut before {starts}: {kind} {index} differ"
