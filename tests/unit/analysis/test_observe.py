from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.analysis.metered_run import MeteredRun
from fxpipe.analysis.observe import Sample, observe
from fxpipe.capture.trace import trace
from tests.builders import build_capture
from tests.unit.analysis.test_metered_run import Net, Ticks


def sample(model: nn.Module, x: torch.Tensor, **options: bool) -> Sample:
    capture = build_capture(model, x)
    return observe(capture, model, MeteredRun(capture, model, Ticks()), [x], **options)


def test_each_autograd_node_s_time_goes_to_its_node() -> None:
    found = sample(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.randn(3, 2)).backward
    # One reading of the clock per autograd node; two more around each parameter's sum.
    assert found == {"_1": 1.0, "_0": 2.0 + 2.0}


def test_without_weights_the_first_layer_has_no_backward() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    full = sample(model, torch.randn(3, 2)).backward
    inputs_only = sample(model, torch.randn(3, 2), weights=False).backward
    assert "_0" in full
    assert "_0" not in inputs_only
    assert inputs_only["_1"] == full["_1"]
    assert inputs_only["_2"] < full["_2"]


def test_no_gradient_is_left_on_the_parameters() -> None:
    model = Net()
    sample(model, torch.randn(2, 1, 5, 5))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_shared_parameter_s_sum_is_shared_by_its_readers() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(self.a(x))

    found = sample(Twice(), torch.randn(3, 2)).backward
    assert found["a_1"] - int(found["a_1"]) == pytest.approx(0.5)


def test_a_frozen_model_has_no_backward() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    assert sample(nn.Sequential(model), torch.randn(3, 2)).backward == {}


def test_frozen_parameters_get_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    assert set(sample(model, torch.randn(3, 2)).backward) == {"_1"}


def test_the_gradient_of_a_sum_is_added_like_others() -> None:
    class Shifts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.shift.sum()

    # One reading of the clock for the sum's backward; two more around the sum of gradients.
    assert sample(Shifts(), torch.randn(4, 2)).backward["sum_1"] == 1.0 + 1.0


class RaisesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("no way back\nat all")


def test_a_backward_that_fails_is_none_and_says_why() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(RaisesBackward.apply(self.a(x)))

    model, x = Net(), torch.randn(3, 2)
    capture = trace(model, (x,))
    found = observe(capture, model, MeteredRun(capture, model, Ticks()), [x])
    assert (found.backward, found.failure) == ({}, "ValueError: no way back")
    assert set(found.forward) == {node.name for node in capture.body}
