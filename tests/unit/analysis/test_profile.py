import io
import sys

import pytest
import torch
from torch import nn

from fxpipe.analysis.profile import profile
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from fxpipe.ir.cost import CostProfile
from tests.builders import build_capture
from tests.unit.analysis.test_grad_mode import Clips


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2d(8, 2, 1),
    )


def measure(net: nn.Module, x: torch.Tensor) -> CostProfile:
    return profile(build_capture(net, x), net, (x,), repeats=2)


def test_every_node_has_its_costs() -> None:
    net, x = model(), torch.randn(4, 3, 16, 16)
    costs = measure(net, x)
    assert list(costs.nodes) == ["_0", "_1", "_2", "_3", "_4"]
    assert all(cost.forward > 0 and cost.backward > 0 for cost in costs.nodes.values())
    assert all(0 <= cost.weight <= cost.backward for cost in costs.nodes.values())
    assert (costs.source, costs.batch_size) == ("measure", 4)
    assert costs.fingerprint == build_capture(net, x).fingerprint()
    assert costs.parameter_bytes == {"_0": 896, "_1": 64, "_4": 72}
    assert [cost.output_bytes for cost in costs.nodes.values()] == [32768] * 4 + [8192]


def test_the_first_layer_s_backward_is_all_for_its_weights() -> None:
    costs = measure(model(), torch.randn(4, 3, 16, 16)).nodes
    assert costs["_0"].weight == costs["_0"].backward


def test_saved_bytes_are_those_the_node_was_first_to_save() -> None:
    costs = measure(model(), torch.randn(4, 3, 16, 16)).nodes
    value = 4 * 8 * 16 * 16 * 4
    assert costs["_0"].saved_bytes == 0  # the model's input
    assert costs["_1"].saved_bytes == value + 2 * 8 * 4  # the convolution's output, two statistics
    assert costs["_2"].saved_bytes == value  # its own result
    assert costs["_3"].saved_bytes == value  # the mask
    assert costs["_4"].saved_bytes == value  # the dropped result


def test_measuring_changes_nothing() -> None:
    net, x = model(), torch.randn(4, 3, 16, 16)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    capture = build_capture(net, x)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    kept, random = x.clone(), torch.get_rng_state()
    profile(capture, net, (x,), repeats=1)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert net[4].weight.grad is None
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(x, kept)


def test_an_input_that_the_model_writes_into_is_not_written() -> None:
    net, x = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)), -torch.ones(2, 4)
    profile(build_capture(net, x.clone()), net, (x,), repeats=2)
    assert torch.equal(x, -torch.ones(2, 4))


def test_a_capture_in_eval_mode_is_measured_in_eval_mode() -> None:
    net, x = model().eval(), torch.randn(4, 3, 16, 16)
    capture = build_capture(net, x)
    net.train()
    costs = profile(capture, net, (x,), repeats=1)
    assert net.training
    assert costs.nodes["_3"].saved_bytes == 0  # no mask: the dropout did nothing


def test_a_capture_without_gradients_is_measured_forward_only() -> None:
    net, x = model().requires_grad_(False), torch.randn(4, 3, 16, 16)
    costs = measure(net, x)
    assert all(cost.forward > 0 for cost in costs.nodes.values())
    assert all((c.backward, c.weight, c.saved_bytes) == (0, 0, 0) for c in costs.nodes.values())


def test_costs_hold_for_the_batch_that_was_measured() -> None:
    net = model()
    capture = build_capture(net, torch.randn(4, 3, 16, 16))
    assert profile(capture, net, (torch.randn(2, 3, 16, 16),), repeats=1).batch_size == 2


def test_a_missing_input_is_named() -> None:
    net = model()
    capture = build_capture(net, torch.randn(4, 3, 16, 16))
    with pytest.raises(CaptureError, match=r"no 0\.0"):
        profile(capture, net, ())


def test_long_work_shows_a_bar_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    net, x = model(), torch.randn(2, 3, 8, 8)
    capture = build_capture(net, x)
    monkeypatch.setattr("fxpipe.analysis.progress.PATIENCE", 0.0)
    shown = []
    for wanted in (True, False):
        monkeypatch.setattr(sys, "stderr", stream := Terminal())
        profile(capture, net, (x,), repeats=2, progress=wanted)
        shown.append("measuring the model" in stream.getvalue())
    assert shown == [True, False]


def test_backward_is_one_graph_so_a_residual_s_sum_is_counted() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            return y + self.b(y)

    costs = measure(Residual(), torch.randn(32, 64)).nodes
    assert costs["add"].backward > 0


class Starts(nn.Module):
    """Decides on buffers that it changes: a flag, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            self.ready.fill_(True)
        self.steps += 1
        return self.layer(x) / (1.0 + 0.1 * int(self.steps))


def test_every_round_finds_the_buffers_as_they_were() -> None:
    net, x = nn.Sequential(Starts(), nn.Linear(4, 4), Starts()), torch.randn(2, 4)
    costs = profile(trace(net, (x,)), net, (x,), repeats=3)
    assert all(cost.forward > 0 for cost in costs.nodes.values())
    assert [(bool(net[n].ready), int(net[n].steps)) for n in (0, 2)] == [(False, 0)] * 2


@pytest.mark.parametrize("grad", [True, False])
def test_a_weight_written_in_place_is_written_in_the_mode_of_the_recording(grad: bool) -> None:
    net, x = Clips(), torch.randn(2, 4)
    before = net.layer.weight.detach().clone()
    with torch.set_grad_enabled(grad):
        costs = profile(trace(net, (x,)), net, (x,), repeats=1)
    assert (costs.nodes["layer"].backward > 0) is grad
    assert torch.equal(net.layer.weight, before)


class Forces(nn.Module):
    """Differentiates its own energy, and keeps no graph of it in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_(True)
        energy = self.net(x)
        (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=self.training)
        return energy, -slope


def test_a_backward_that_fails_costs_nothing_and_is_told() -> None:
    net, x = Forces().eval(), torch.randn(2, 4)
    capture = trace(net, (x,))
    with pytest.warns(UserWarning, match="forward alone, as the backward fails .*second time"):
        costs = profile(capture, net, (x,), repeats=2).nodes
    assert all(cost.forward > 0 for cost in costs.values())
    assert all((cost.backward, cost.weight) == (0, 0) for cost in costs.values())


def test_forces_that_are_trained_are_measured_backward_too() -> None:
    net, x = Forces(), torch.randn(2, 4)
    costs = profile(trace(net, (x,)), net, (x,), repeats=1).nodes
    assert costs["grad"].backward > 0
