from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)


class Hyper(nn.Module):
    """A layer with weights that another one makes."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.weights = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = {"0.weight": self.weights(x.detach().mean(0)).view(4, 4)}
        return torch.func.functional_call(self.base, made, (x,))


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_module_that_swaps_parameters_stays_whole(mode: str) -> None:
    model = small.Chain(small.Mlp(), Hyper(), small.Mlp())
    capture = trace(model, (X,), mode=mode, batch_dims=[None])
    assert {leaf.path for leaf in capture.leaves} >= {"parts.1"}
    assert_agrees(capture, model, (X,))


def test_swapped_parameters_in_the_model_itself_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"other parameters(.|\n)*functional_call"):
        trace(Hyper(), (X,), batch_dims=[None])


class Teacher(nn.Module):
    """A net, and the same net with other parameters of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.slow = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            slow = torch.func.functional_call(self.net, dict(self.slow.named_parameters()), (x,))
        return self.net(x) - slow


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_parameters_swapped_for_others_of_the_model_keep_a_module_whole(mode: str) -> None:
    model = small.Chain(small.Mlp(), Teacher(), small.Mlp())
    capture = trace(model, (X,), mode=mode, verify=False)
    assert [leaf.path for leaf in capture.leaves] == ["parts.1"]
    assert_agrees(capture, model, (X,))
    with pytest.raises(CaptureError, match=r"other parameters(.|\n)*functional_call"):
        trace(Teacher(), (X,), verify=False)


class Counts(nn.Module):
    """Keeps a tensor, and switches a layer's mode."""

    def __init__(self, to_eval: bool) -> None:
        super().__init__()
        self.layer, self.to_eval = nn.Linear(4, 4), to_eval
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer.train(not self.to_eval)(x)
        self.last = y.detach().mean(0)
        return y


@pytest.mark.parametrize(
    ("to_eval", "reason"),
    [(True, "switches modules between"), (False, "keeps a tensor in its attribute 'last'")],
)
def test_a_module_that_changes_itself_stays_whole(to_eval: bool, reason: str) -> None:
    model = small.Chain(small.Mlp(), Counts(to_eval), small.Mlp())
    capture = trace(model, (X,), batch_dims=[None])
    (leaf,) = (leaf for leaf in capture.leaves if leaf.path == "parts.1")
    assert reason in leaf.reason
    assert_agrees(capture, model, (X,))
