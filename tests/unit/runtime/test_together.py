"""A spread model runs as a whole, and is spread again after."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.runtime.together import together
from tests.virtual.accelerator import VirtualAccelerator
from tests.virtual.memory import HOST


def test_a_spread_model_runs_on_the_host() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    x = torch.randn(3, 4)
    expected = model.eval()(x)
    accelerator = VirtualAccelerator(2)
    with accelerator.watch():
        for layer, device in zip(model, accelerator.devices, strict=True):
            accelerator.place(layer, device)
        tensors = [*model.parameters(), *model.buffers()]
        before = [tensor.data_ptr() for tensor in tensors]
        with together(tensors, HOST):
            assert torch.equal(model(x), expected)
        assert [tensor.data_ptr() for tensor in tensors] == before
        assert model[1].weight.device == accelerator.devices[1]
    assert not accelerator.report


def test_gradients_come_back_after_a_failure() -> None:
    accelerator = VirtualAccelerator(1)
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    gradient = layer.weight.grad
    with accelerator.watch():
        accelerator.place(layer, accelerator.devices[0])
        with pytest.raises(ZeroDivisionError):
            _fail_inside(layer)
        assert layer.weight.grad is gradient
        assert layer.weight.device == accelerator.devices[0]


def _fail_inside(layer: nn.Linear) -> None:
    with together(layer.parameters(), HOST):
        assert layer.weight.device == HOST
        assert layer.weight.grad is None
        raise ZeroDivisionError


def test_a_model_that_is_there_is_left_alone() -> None:
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    gradient, before = layer.weight.grad, layer.weight.data_ptr()
    with together(layer.parameters(), HOST):
        assert layer.weight.grad is gradient
        assert layer.weight.data_ptr() == before
