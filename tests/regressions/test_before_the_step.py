"""Backwards that are run before the step, to verify and to measure, leave the gradients alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxpipe


class _Reversible(torch.autograd.Function):
    """``y = x + f(x)`` that keeps nothing, and calls ``backward()`` in its own backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: nn.Module, *parameters: Tensor) -> Tensor:
        with torch.no_grad():
            ctx.function, ctx.count = function, len(parameters)
            ctx.save_for_backward(x)
            return x + function(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,), (grad,) = ctx.saved_tensors, grads
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            ctx.function(again).backward(grad)
        return grad + again.grad, None, *[None] * ctx.count


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return _Reversible.apply(x, self.inner, *self.inner.parameters())  # type: ignore[no-any-return]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), _Block(), _Block(), nn.Linear(4, 2))


@pytest.mark.parametrize("choices", [{}, {"verify": False}, {"costs": "estimate"}])
def test_a_function_that_calls_backward(choices: dict[str, Any]) -> None:
    plain, model = _model(), _model()
    x, y = torch.randn(4, 4), torch.randn(4, 2)
    for part in zip(x.split(2), y.split(2), strict=True):
        (F.mse_loss(plain(part[0]), part[1]) / 2).backward()
    with fxpipe.compile(model, devices=["cpu"] * 2, chunks=2, **choices) as pipe:
        for mode in (True, False):  # another mode is another recording
            model.zero_grad()
            pipe.train(mode).step(x, target=y, loss_fn=F.mse_loss)
            for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                assert torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


def test_gradients_that_were_there_are_the_very_same() -> None:
    model, x = _model(), torch.randn(4, 4)
    model(x).sum().backward()
    before = [p.grad for p in model.parameters()]
    bits = copy.deepcopy(before)
    capture = fxpipe.trace(model, (x,))
    fxpipe.profile(capture, model, (x,))
    fxpipe.estimate(capture, model)
    for parameter, grad, value in zip(model.parameters(), before, bits, strict=True):
        assert parameter.grad is grad
        assert torch.equal(grad, value)  # type: ignore[arg-type]
