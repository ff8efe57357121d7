"""`fxpipe.gradients`: no backward inside reaches a gradient of the caller's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.gradients import Gradients


def _with_gradients() -> tuple[nn.Linear, torch.Tensor]:
    model = nn.Linear(2, 2)
    model.weight.grad = torch.ones(2, 2)
    other = torch.ones(2, requires_grad=True)
    other.grad = torch.full((2,), 3.0)
    return model, other


def _accumulate(model: nn.Linear, other: torch.Tensor) -> None:
    model(other).sum().backward()


def _accumulate_and_fail(model: nn.Linear, other: torch.Tensor) -> None:
    _accumulate(model, other)
    model(other).backward()


def test_they_are_the_very_tensors_with_the_very_bits() -> None:
    model, other = _with_gradients()
    before = [model.weight.grad, other.grad]
    with Gradients(model, [other, torch.zeros(1)]) as gradients:
        assert model.weight.grad is None
        _accumulate(model, other)
        assert model.bias.grad is not None
        gradients.forget()
        assert model.bias.grad is None
        _accumulate(model, other)
    assert model.weight.grad is before[0]
    assert other.grad is before[1]
    assert torch.equal(before[0], torch.ones(2, 2))  # type: ignore[arg-type]
    assert torch.equal(before[1], torch.full((2,), 3.0))  # type: ignore[arg-type]
    assert model.bias.grad is None


def test_an_exception_does_not_keep_them() -> None:
    model, other = _with_gradients()
    before = model.weight.grad
    with pytest.raises(RuntimeError, match="scalar"), Gradients(model, [other]):
        _accumulate_and_fail(model, other)
    assert model.weight.grad is before
    assert model.bias.grad is None
    assert torch.equal(other.grad, torch.full((2,), 3.0))  # type: ignore[arg-type]
