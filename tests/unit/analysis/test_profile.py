import io
import sys

import pytest
import torch
from torch import nn

from fxpipe.analysis.profile import profile
from fxpipe.errors import CaptureError
from fxpipe.ir.cost import CostProfile
from tests.builders import build_capture


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
