from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)


class Holder:
    """A module out of sight: not among the model's children."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module


class UsesHidden(nn.Module):
    def __init__(self, hidden: nn.Module) -> None:
        super().__init__()
        self.body, self.holder = small.Mlp(), Holder(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.holder.module(self.body(x))


def test_modules_that_are_not_the_models_belong_to_their_caller() -> None:
    model = UsesHidden(nn.Softmax(-1))
    capture = trace(model, (X,))
    assert [node.target for node in capture.body][-1] is torch.nn.functional.softmax
    assert_agrees(capture, model, (X,))


def test_parameters_out_of_sight_are_refused() -> None:
    with pytest.raises(CaptureError, match="a parameter that is not among the model's"):
        trace(UsesHidden(nn.Linear(4, 4)), (X,))


def test_module_registered_twice_goes_by_its_first_path() -> None:
    model = small.Chain(small.Mlp())
    model.again = model.parts[0]
    assert [span.path for span in trace(model, (X,)).spans] == ["", "parts.0"]


class Random(nn.Module):
    """Decides on a random number: layerdrop."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if torch.rand(()) < 0.5 else torch.rand_like(x) * x


def test_random_decision_keeps_a_module_whole() -> None:
    model = small.Chain(small.Mlp(), Random())
    capture = trace(model, (X,))
    assert [leaf.path for leaf in capture.leaves] == ["parts.1"]
    assert capture.node("parts_1").meta["rng"] == ("parts.1#0", 0)
    assert_agrees(capture, model, (X,), rows=4)


def test_backward_hooks_keep_a_module_whole() -> None:
    model, calls = small.Chain(small.Mlp(), small.Mlp()), []
    model.parts[1].register_full_backward_hook(lambda *args: calls.append(1))
    capture = trace(model, (X,))
    assert [leaf.path for leaf in capture.leaves] == ["parts.1"]
    calls.clear()
    GraphRunner.of(capture, model).run([X])[0].sum().backward()
    assert calls == [1]
