from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fxpipe.fake_model import FakeModel
from tests.unit.capture import small


def test_parameters_and_buffers_are_replaced_and_put_back() -> None:
    model = small.ConvNet()
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    with FakeModel(model) as fakes:
        held = dict(model.named_parameters()) | dict(model.named_buffers())
        assert all(isinstance(tensor, FakeTensor) for tensor in held.values())
        assert {name: fakes.real_of[id(tensor)] for name, tensor in held.items()} == before
        assert isinstance(model.head.weight, nn.Parameter)
        with fakes.real(model.head):
            assert model.head.weight is before["head.weight"]
            assert isinstance(model.blocks[0].conv.weight, FakeTensor)
        assert isinstance(model.head.weight, FakeTensor)
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert all(after[name] is tensor for name, tensor in before.items())


def test_tied_parameters_stay_tied() -> None:
    model = small.Tied()
    with FakeModel(model):
        assert model.head.weight is model.embed.weight


def test_put_back_after_an_error() -> None:
    model = small.Mlp()
    weight = model.linear.weight
    with pytest.raises(KeyboardInterrupt), FakeModel(model):
        raise KeyboardInterrupt
    assert model.linear.weight is weight


def test_no_memory_is_needed() -> None:
    model = nn.Linear(4, 4)
    with FakeModel(model) as fakes, fakes.mode:
        assert torch.empty(10**9, 10**6).shape == (10**9, 10**6)


def test_torch_does_not_log_what_cannot_run_on_fakes(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("torch._subclasses.fake_tensor")
    with FakeModel(nn.Linear(2, 2)), FakeModel(nn.Linear(2, 2)):
        log.error("inside")
    log.error("after")
    assert caplog.messages == ["after"]
