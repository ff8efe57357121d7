from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fxpipe.capture.restore import ModelState, Modes, Randomness, random_states


class Changes(nn.Module):
    """Changes everything about itself that a module can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("mean", torch.zeros(2))
        self.plain = torch.ones(2)
        self.seen: list[int] = []
        self.table = {"a": 1}
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.mean = x.mean(0)
        self.plain += 1
        self.seen.append(1)
        self.table["b"] = 2
        self.new = x
        self.register_buffer("late", x)
        self.inner.register_forward_hook(lambda *args: None)
        self.eval()
        return x


def state(model: nn.Module) -> list[Any]:
    return [
        (name, [(key, id(value)) for key, value in module.__dict__.items()])
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_modules_are_put_back(error: type[BaseException] | None) -> None:
    model = Changes()
    before, buffers = state(model), [(name, id(b)) for name, b in model.named_buffers()]

    def run() -> None:
        with ModelState(model):
            model(torch.ones(3, 2))
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert state(model) == before
    assert [(name, id(b)) for name, b in model.named_buffers()] == buffers
    assert not model.count.any()
    assert model.plain.tolist() == [1, 1]
    assert model.seen == []
    assert model.table == {"a": 1}
    assert not model.inner._forward_hooks
    assert model.training
    assert model.inner.training


def test_unchanged_buffers_are_not_written() -> None:
    model = nn.BatchNorm1d(2)
    versions = [buffer._version for buffer in model.buffers()]
    with ModelState(model):
        model.eval()(torch.ones(3, 2))
    assert [buffer._version for buffer in model.buffers()] == versions


def test_generators_are_put_back() -> None:
    before = random_states()
    with Randomness():
        torch.rand(1)
        random.random()
        np.random.rand()
        assert random_states()[0].tolist() != before[0].tolist()
    after = random_states()
    assert torch.equal(after[0], before[0])
    assert after[1:] == before[1:]


def test_modes_are_put_back() -> None:
    with Modes():
        torch.set_grad_enabled(False)
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cpu", torch.float16)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") is torch.bfloat16


def test_models_may_hold_sparse_tensors() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("graph", torch.eye(2).to_sparse())
    with ModelState(model):
        model.graph = torch.zeros(2)
    assert model.graph.is_sparse
