import pytest
import torch
from torch import nn

from fxpipe.analysis.grad_mode import followed
from fxpipe.analysis.profile import profile
from fxpipe.capture.trace import trace


class Clips(nn.Module):
    """Writes into a weight under a grad mode of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.layer.weight.clamp_(-0.2, 0.2)
        return self.layer(x)


class Differentiates(nn.Module):
    """Turns autograd on where it is off."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            y = self.layer(x)
        return y * 2


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("make", [Clips, Differentiates, lambda: nn.Sequential(nn.Linear(4, 4))])
def test_it_is_the_mode_of_the_recording(make: type[nn.Module], grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        capture = trace(make(), (torch.randn(2, 4),))
    assert followed(capture) is grad


def test_a_frozen_model_is_not_followed() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).requires_grad_(False)
    assert not followed(trace(model, (torch.randn(2, 4),)))


def test_an_input_written_in_place_is_no_sign_of_it() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    with torch.no_grad():
        assert not followed(trace(nn.Sequential(nn.ReLU(inplace=True)), (x,)))


class Marks(nn.Module):
    """Marks its own result, in any mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).requires_grad_()


def test_a_mark_is_no_sign_of_it() -> None:
    with torch.no_grad():
        assert not followed(trace(Marks(), (torch.randn(2, 4),)))
    assert followed(trace(Marks(), (torch.randn(2, 4),)))


def test_a_marked_result_is_measured_in_inference_mode_too() -> None:
    model = Marks()
    with torch.inference_mode():
        x = torch.randn(2, 4)
        costs = profile(trace(model, (x,)), model, (x,), repeats=1)
    assert all(cost.backward == 0 for cost in costs.nodes.values())
