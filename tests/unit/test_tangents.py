"""Forward-mode differentiation is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

import fxpipe
from fxpipe.errors import ExecutionError


def _pipe() -> fxpipe.Pipeline:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
    return fxpipe.compile(model, devices=["cpu"] * 2, chunks=2, cuts=["1"], backend="inline")


CALLS: dict[str, Callable[[fxpipe.Pipeline, Tensor], Any]] = {
    "call": lambda pipe, x: pipe(x),
    "step": lambda pipe, x: pipe.step(x, target=torch.zeros(4, 4), loss_fn=F.mse_loss),
    "ready-made": lambda pipe, x: pipe.step(
        micro_batches=[((x,), {}, torch.zeros(4, 4))], loss_fn=F.mse_loss
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_input_with_a_tangent_is_refused(
    call: Callable[[fxpipe.Pipeline, Tensor], Any],
) -> None:
    x = torch.randn(4, 4)
    with _pipe() as pipe, forward_ad.dual_level():
        with pytest.raises(ExecutionError, match="forward-mode"):
            call(pipe, forward_ad.make_dual(x, x))
        call(pipe, x)  # an input without one is not


def test_jvp_is_refused() -> None:
    x = torch.randn(4, 4)
    with _pipe() as pipe, pytest.raises(ExecutionError, match="forward-mode"):
        torch.func.jvp(pipe, (x,), (x,))


def test_by_hand() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
    x = torch.randn(4, 4)
    capture = fxpipe.trace(model, (x,))
    plan = fxpipe.partition(capture, fxpipe.estimate(capture, model), stages=2)
    graph = fxpipe.link(capture, plan)
    stages = fxpipe.generate(capture, plan, graph, model)
    programs = fxpipe.lower(fxpipe.Schedule.from_text("0F0 0B0\n1F0 1B0"), graph)
    with forward_ad.dual_level(), pytest.raises(ExecutionError, match="forward-mode"):
        fxpipe.run(
            model,
            capture,
            stages,
            graph,
            programs,
            (forward_ad.make_dual(x, x),),
            target=x,
            loss_fn=F.mse_loss,
        )
