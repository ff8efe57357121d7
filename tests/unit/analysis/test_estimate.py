import copy
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

from fxpipe.analysis.estimate import estimate
from fxpipe.analysis.meter import ACCELERATOR, Device
from fxpipe.analysis.profile import profile
from fxpipe.capture.trace import trace
from tests.builders import build_capture
from tests.unit.analysis.test_grad_mode import Clips
from tests.unit.analysis.test_profile import Forces

ARITHMETIC = Device(flops_per_second=1.0, bytes_per_second=1e30, start=0.0)


def unet_like() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
            self.drop = nn.Dropout(0.2)
            self.weight = nn.Parameter(torch.ones(5, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.drop(self.up(torch.relu(self.norm(self.down(x)))))
            return y.flatten(2).mean(2) @ self.weight.t()

    return Net()


def test_operations_follow_the_formulas() -> None:
    net, x = unet_like(), torch.randn(2, 3, 8, 8)
    costs = estimate(build_capture(net, x), net, ARITHMETIC).nodes
    down, up, product = 2 * 2 * 64 * 8 * 27, 2 * 2 * 64 * 8 * 16, 2 * 2 * 4 * 5
    assert costs["up"].flops == up
    assert costs["matmul"].flops == product
    assert down <= costs["down"].flops <= down + 2 * 8 * 64
    # One product for the input, one for the weight, and the sums of weight gradients.
    assert costs["up"].backward == 2 * up + net.up.weight.numel() + net.up.bias.numel()
    assert costs["up"].weight == up + net.up.weight.numel() + net.up.bias.numel()


def test_the_first_layer_makes_no_gradient_of_the_input() -> None:
    net, x = unet_like(), torch.randn(2, 3, 8, 8)
    costs = estimate(build_capture(net, x), net, ARITHMETIC).nodes
    assert costs["down"].weight == costs["down"].backward > 0
    x.requires_grad_()
    costs = estimate(build_capture(net, x), net, ARITHMETIC).nodes
    assert 0 < costs["down"].weight < costs["down"].backward


def test_bytes_are_those_that_are_measured() -> None:
    net, x = unet_like(), torch.randn(2, 3, 8, 8)
    capture = build_capture(net, x)
    counted, measured = estimate(capture, net), profile(capture, net, (x,), repeats=1)
    assert counted.parameter_bytes == measured.parameter_bytes
    for name, cost in counted.nodes.items():
        other = measured.nodes[name]
        assert (cost.saved_bytes, cost.output_bytes) == (other.saved_bytes, other.output_bytes)


def test_a_model_on_the_meta_device_is_counted_alike_and_nothing_is_allocated() -> None:
    net, x = unet_like(), torch.randn(2, 3, 8, 8)
    capture = build_capture(net, x)
    on_cpu = estimate(capture, net, ACCELERATOR)
    on_meta = estimate(capture, copy.deepcopy(net).to("meta"))
    assert on_meta.nodes == on_cpu.nodes
    assert (on_meta.source, on_meta.batch_size) == ("estimate", 2)


def test_counting_changes_nothing_and_is_deterministic() -> None:
    net, x = unet_like(), torch.randn(2, 3, 8, 8)
    capture = build_capture(net, x)
    random, mean = torch.get_rng_state(), net.norm.running_mean.clone()
    assert estimate(capture, net) == estimate(capture, net)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(net.norm.running_mean, mean)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_eval_mode_without_gradients_has_no_backward() -> None:
    net, x = unet_like().eval().requires_grad_(False), torch.randn(2, 3, 8, 8)
    costs = estimate(build_capture(net, x), net).nodes
    assert all(cost.backward == cost.saved_bytes == 0 for cost in costs.values())


class Routed(nn.Module):
    """Looks at its data, so that it cannot run without."""

    def __init__(self) -> None:
        super().__init__()
        self.expert = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.expert(x) if x.sum().item() != 0 else x


class WithRouted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.routed, self.last = nn.Linear(4, 4), Routed(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.routed(self.first(x)))


def test_what_cannot_run_without_data_is_guessed_from_its_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        torch.fx.Tracer, "is_leaf_module", lambda self, m, path: not isinstance(m, WithRouted)
    )
    net, x = WithRouted(), torch.randn(8, 4)
    capture = build_capture(net, x)
    with pytest.warns(UserWarning, match="1 nodes were guessed.*routed"):
        costs = estimate(capture, net, ARITHMETIC).nodes
    work = 2 * 8 * 16 + 32
    assert costs["routed"].flops == work
    assert costs["routed"].backward == 2 * work + 16  # and the sum of the weight's gradients
    assert costs["first"].backward > 0  # gradients go on through it


def test_a_model_that_runs_on_fakes_warns_of_nothing() -> None:
    net, x = unet_like(), torch.randn(2, 3, 8, 8)
    capture = build_capture(net, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate(capture, net)


class WritesData(nn.Module):
    """Puts other memory behind a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.weight.data = self.linear.weight.data.clamp(-1, 1)
        self.count.data += 1
        return self.linear(x) / self.count


def test_parameters_and_buffers_keep_their_memory() -> None:
    net, x = WritesData(), torch.randn(2, 4)
    capture = trace(net, (x,), verify=False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    estimate(capture, net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_model_that_was_counted_can_be_dropped() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    estimate(trace(model, (torch.randn(4, 8),)), model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


class SparseWeights(nn.Module):
    """Its parameter holds the values of a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.weights = nn.Parameter(torch.rand(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        where = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
        graph = torch.sparse_coo_tensor(where, self.weights, (4, 4))
        return torch.einsum("ij,bjd->bid", graph.to_dense(), self.layer(x))


@pytest.mark.parametrize(
    ("model", "x", "why"),
    [
        (SparseWeights(), torch.randn(2, 4, 8), "invalid gradient"),
        (Forces().eval(), torch.randn(2, 4), "second time"),
    ],
    ids=["sparse", "a graph that is used up"],
)
def test_a_backward_that_fails_is_guessed_as_a_whole(
    model: nn.Module, x: torch.Tensor, why: str
) -> None:
    capture = trace(model, (x,))
    with pytest.warns(UserWarning, match=f"backward of all nodes.*{why}"):
        costs = estimate(capture, model).nodes
    assert all(cost.backward == 2 * cost.forward for cost in costs.values())
    assert any(cost.forward > 0 for cost in costs.values())


def test_a_weight_written_in_place_is_counted_in_the_mode_of_the_recording() -> None:
    net, x = Clips(), torch.randn(2, 4)
    with torch.no_grad():
        capture = trace(net, (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        costs = estimate(capture, net).nodes
    assert all(cost.backward == 0 for cost in costs.values())
