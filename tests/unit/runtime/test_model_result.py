from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.runtime.activations import Frame
from fxpipe.runtime.caller_inputs import CallerInputs
from fxpipe.runtime.devices import open_lane
from fxpipe.runtime.loss import LossTask
from fxpipe.runtime.model_result import ModelResult
from fxpipe.runtime.ports import Ports
from fxpipe.runtime.surroundings import CallerState
from tests.unit.runtime.stages import program

CPU = torch.device("cpu")
LAYOUT: Any = SimpleNamespace(output_leaves=list, unflatten=lambda leaves: leaves[0])


def result() -> ModelResult:
    graph = StageGraph(1, (Edge("x", HOST, (0,)),), (), ("y",))
    ports = Ports.of(program(0, ["x"], ["y"]), graph, ["x"])
    return ModelResult(CallerInputs(ports, open_lane(CPU), 0, frozenset()), CPU, (0, 0))


def step(loss_fn: Callable[[Any, Any], Tensor] | None, *, keeps_output: bool = True) -> Any:
    """One of one micro-batch, whose loss has a weight of a half."""
    return SimpleNamespace(
        loss=None if loss_fn is None else LossTask(loss_fn, [None], [0.5]),
        losses=[None],
        outputs=[[]],
        keeps_output=keeps_output,
        keeps_graph=True,
        caller=CallerState.now(["cpu"], grad=True),
        loss_draws={},
        left=None,
    )


def test_backward_starts_at_the_weighted_loss() -> None:
    frame, made = Frame(1, 1), step(lambda y, target: y.sum())
    result().note(LAYOUT, frame, (torch.full((2,), 3.0, requires_grad=True),), 0, made)
    assert made.losses[0].item() == 6.0
    assert not made.losses[0].requires_grad
    assert frame.root is not None
    assert frame.root.item() == 3.0
    assert made.outputs[0][0].tolist() == [3.0, 3.0]
    assert frame.outputs == []


def test_a_call_starts_at_its_outputs() -> None:
    frame, made = Frame(1, 1), step(None, keeps_output=False)
    result().note(LAYOUT, frame, (torch.ones(2, requires_grad=True) * 2, "text"), 0, made)
    assert [edges is not None for edges in frame.outputs] == [True, False]
    assert frame.root is None
    assert made.outputs == [[]]


def test_a_loss_that_depends_on_nothing_is_told() -> None:
    with pytest.raises(ValueError, match="there is nothing to run backward from"):
        result().note(LAYOUT, Frame(1, 1), (torch.ones(2),), 0, step(lambda y, target: y.sum()))


def test_a_loss_that_is_computed_again_draws_the_same() -> None:
    drawn: list[float] = []

    def loss_fn(y: Tensor, target: object) -> Tensor:
        drawn.append(torch.rand(()).item())
        return y.sum()

    last, frame, made = result(), Frame(1, 1), step(loss_fn)
    frame.replay = SimpleNamespace()  # type: ignore[assignment]
    y = torch.ones(2, requires_grad=True)
    last.note(LAYOUT, frame, (y,), 0, made)
    state = torch.get_rng_state()
    last.note_again(LAYOUT, frame, (y,), 0, made)
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.get_rng_state(), state)
