import pytest
import torch
from torch import nn

from fxpipe.analysis.metered_run import MeteredRun
from fxpipe.analysis.observe import _graph_of
from fxpipe.capture.trace import trace
from fxpipe.ir.capture import Capture
from tests.builders import build_capture


class Ticks:
    """A clock that goes on by one at every reading."""

    def __init__(self) -> None:
        self.time = 0

    def now(self) -> float:
        self.time += 1
        return float(self.time)

    def flops(self) -> int:
        return 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, bias=False)
        self.act = nn.ReLU(inplace=True)
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.conv(x))
        return y.mean((2, 3)) * self.weight.exp()


def run(model: nn.Module, x: torch.Tensor) -> tuple[Capture, MeteredRun, torch.Tensor]:
    capture = build_capture(model, x)
    metered = MeteredRun(capture, model, Ticks())
    (output,) = metered.run(x)
    return capture, metered, output


def test_the_run_computes_what_the_model_does_and_times_each_node() -> None:
    model, x = Net(), torch.randn(2, 1, 5, 5)
    capture, metered, output = run(model, x)
    assert torch.equal(output, model(x))
    assert metered.forward == {node.name: 1.0 for node in capture.body}


def test_every_autograd_node_belongs_to_the_node_that_made_it() -> None:
    _, metered, output = run(Net(), torch.randn(2, 1, 5, 5))
    owners = {node.name(): metered.owner(node) for node in _graph_of([output])}
    assert owners == {
        "ConvolutionBackward0": "conv",
        "ReluBackward0": "act",
        "MeanBackward1": "mean",
        "ExpBackward0": "exp",
        "MulBackward0": "mul",
        "torch::autograd::AccumulateGrad": None,
    }


def test_gradients_end_where_the_first_differentiable_value_is_made() -> None:
    _, metered, _ = run(Net(), torch.randn(2, 1, 5, 5))
    assert [edge.node.name() for edge in metered.entries] == ["ConvolutionBackward0"]


def test_an_input_that_needs_a_gradient_leaves_no_other_end() -> None:
    _, metered, _ = run(Net(), torch.randn(2, 1, 5, 5, requires_grad=True))
    assert metered.entries == []


def test_saved_bytes_are_counted_once_per_storage_without_parameters_and_inputs() -> None:
    model, x = Net(), torch.randn(2, 1, 5, 5)
    metered = MeteredRun(build_capture(model, x), model, Ticks())
    metered.run_counting_saved([x])
    assert metered.saved == {
        "conv": 0,  # its input is the model's, its weight a parameter
        "act": 2 * 2 * 3 * 3 * 4,  # its result; the mean saves nothing of its own
        "mean": 0,
        "exp": 8,
        "mul": 16,  # the mean; the exponential is saved already
    }


def test_a_module_recorded_through_its_forward_is_run_so() -> None:
    seen = []
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(lambda *_: seen.append(1))
    capture = build_capture(model, torch.randn(1, 2))
    seen.clear()
    capture.body[0].meta["via"] = "forward"
    MeteredRun(capture, model, Ticks()).run(torch.randn(1, 2))
    assert seen == []


class Slope(nn.Module):
    """A transform of torch.func, which runs under no hooks of saved tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slope = torch.func.vmap(torch.func.grad(lambda row: row.pow(3).sum()))
        return self.layer(x) + slope(x)


def test_transforms_run_while_saved_bytes_are_counted() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), Slope(), nn.Tanh()), torch.randn(3, 4)
    capture = trace(model, (x,))
    metered = MeteredRun(capture, model, Ticks())
    (output,) = metered.run_counting_saved([x])
    assert torch.equal(output, model(x))
    assert metered.saved["_2"] == output.nbytes  # hooked again after it


def test_other_failures_under_hooks_are_those_of_the_node() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(3, 4)
    metered = MeteredRun(trace(model, (x,)), model, Ticks())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        metered.run_counting_saved([torch.randn(3, 5)])
