import pytest
import torch
from torch import nn

from fxpipe.analysis.estimate import estimate
from fxpipe.analysis.profile import profile
from fxpipe.capture.trace import trace
from fxpipe.outside_inference import outside_inference


def modes() -> tuple[bool, bool]:
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled()


def test_inference_is_left_for_no_grad_and_entered_again() -> None:
    model = nn.Linear(2, 2)
    with torch.inference_mode():
        with outside_inference(model):
            assert modes() == (False, False)
        assert modes() == (True, False)


@pytest.mark.parametrize("grad", [True, False])
def test_other_modes_stay(grad: bool) -> None:
    with torch.set_grad_enabled(grad), outside_inference(nn.Linear(2, 2)):
        assert modes() == (False, grad)


def test_a_model_made_in_inference_mode_stays_in_it() -> None:
    with torch.inference_mode():
        model = nn.BatchNorm1d(2)
        x = torch.randn(4, 2)
        with outside_inference(model):
            assert modes() == (True, False)
        capture = trace(nn.Sequential(model), (x,))
    assert [node.name for node in capture.body] == ["_0"]


class Products(nn.Module):
    """A composite layer and a composite function."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.weight = nn.GRU(4, 4, batch_first=True), nn.Parameter(torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("blc,dc->bld", self.recurrent(x)[0], self.weight)


def test_composites_under_autocast_are_recorded_as_they_compute() -> None:
    torch.manual_seed(0)
    model, x = Products().eval(), torch.randn(2, 3, 4)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        capture = trace(model, (x,))
        counted = estimate(capture, model)
        measured = profile(capture, model, (x,), repeats=1)
    assert capture.spec(capture.body[-1].name).dtype == str(expected.dtype).removeprefix("torch.")
    for costs in (counted, measured):
        assert all(cost.backward == 0 for cost in costs.nodes.values())
