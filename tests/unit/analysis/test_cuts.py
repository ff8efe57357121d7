from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxpipe import ops
from fxpipe.analysis.cuts import bonds, legal_cuts, why_illegal
from fxpipe.capture.trace import trace
from fxpipe.ir.capture import Capture
from fxpipe.ir.spec import Opaque, TensorSpec
from tests.builders import build_capture
from tests.captures import capture_of, chain_capture


def illegal(capture: Capture) -> dict[str, str]:
    """Node before which no cut is allowed → why."""
    found = {}
    for position, node in enumerate(capture.body):
        reason = why_illegal(capture, position)
        if position and reason is not None:
            found[node.name] = reason
    assert legal_cuts(capture) == tuple(
        i for i, node in enumerate(capture.body) if i and node.name not in found
    )
    return found


class Function(nn.Module):
    """A model that is a function of its input."""

    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def capture_function(function: Callable[..., Any], **buffers: torch.Tensor) -> Capture:
    return build_capture(Function(function, **buffers), torch.randn(4, 4))


def test_a_chain_of_pure_nodes_may_be_cut_anywhere_inside() -> None:
    capture = chain_capture(4)
    assert legal_cuts(capture) == (1, 2, 3)
    assert bonds(capture) == ()


@pytest.mark.parametrize("index", [0, 4, -1, 9])
def test_a_cut_at_an_end_is_none(index: int) -> None:
    reason = why_illegal(chain_capture(4), index)
    assert reason is not None
    assert "both sides" in reason


def test_a_graph_of_one_node_has_no_cuts() -> None:
    assert legal_cuts(chain_capture(1)) == ()


def test_a_result_and_what_takes_it_apart_stay_together() -> None:
    def model(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        parts = torch.split(x.neg(), 2)
        first = parts[0].exp()
        return first + parts[1]

    found = illegal(capture_function(model))
    assert list(found) == ["getitem", "exp", "getitem_1"]
    assert "takes apart what 'split'" in found["exp"]


def test_numbers_taken_out_of_a_size_bind_nothing() -> None:
    capture = chain_capture(3)
    capture.body[0].meta["spec"] = (2, 3)
    capture.body[1].target = __import__("operator").getitem
    assert legal_cuts(capture) == (1, 2)


def test_memory_is_written_only_where_it_is_made() -> None:
    def model(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()  # 0: makes the memory
        z = y.sin()  # 1
        y.add_(1)  # 2: writes into it
        return z.cos() + y  # 3, 4

    found = illegal(capture_function(model))
    assert list(found) == ["sin", "add_"]
    assert "written in place" in found["sin"]


def test_a_write_through_a_view_counts_for_the_base() -> None:
    def model(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        view = y.view(16)
        other = x.neg()
        view.mul_(2)
        return y.sum() + other.sum()

    assert list(illegal(capture_function(model))) == ["view", "neg", "mul_"]


def test_an_input_that_is_written_is_read_on_one_stage() -> None:
    def model(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        z = y.neg()
        x.add_(1)
        w = z.cos()
        return w + x

    # The last sum reads the input itself, of which another device would hold an unwritten copy.
    assert list(illegal(capture_function(model))) == ["neg", "add_", "cos", "add"]


def test_a_buffer_that_is_written_is_used_on_one_stage() -> None:
    def model(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y = y * self.scale
        y = y.neg()
        self.scale.add_(y.mean())
        return y.cos()

    found = illegal(capture_function(model, scale=torch.ones(4)))
    assert list(found) == ["neg", "mean", "add_"]
    assert "buffer 'scale'" in found["add_"]


def test_a_layer_that_changes_its_buffers_is_called_on_one_stage() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mid, self.other = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.norm(self.mid(self.norm(self.mid(x)))))

    model = Twice()
    found = illegal(build_capture(model, torch.randn(4, 4)))
    assert list(found) == ["mid_1", "norm_1"]
    assert "share the buffer 'norm." in found["norm_1"]
    assert illegal(build_capture(model.eval(), torch.randn(4, 4))) == {}


def test_a_region_is_never_cut_nor_parted_from_its_switches() -> None:
    def model(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin().cos().neg().abs()

    capture = capture_function(model)
    for node in capture.body[1:3]:
        node.meta["regions"] = (7,)
    assert list(illegal(capture)) == ["cos"]
    for node in (capture.body[0], capture.body[3]):
        node.target = ops.set_grad_enabled
    assert list(illegal(capture)) == ["sin", "cos", "neg"]


def test_nested_regions_are_one() -> None:
    capture = chain_capture(6)
    for position, regions in enumerate([(), (0,), (0, 1), (0, 1), (0,), ()]):
        capture.body[position].meta["regions"] = regions
    assert legal_cuts(capture) == (1, 5)


def test_an_object_does_not_cross() -> None:
    capture = chain_capture(4)
    capture.body[1].meta["spec"] = Opaque("autocast")
    found = illegal(capture)
    assert list(found) == ["neg_2"]
    assert "autocast" in found["neg_2"]


@pytest.mark.parametrize("kind", ["dtype", "device", "Size"])
def test_plain_objects_cross(kind: str) -> None:
    capture = chain_capture(4)
    capture.body[1].meta["spec"] = Opaque(kind)
    assert legal_cuts(capture) == (1, 2, 3)


def test_an_object_that_is_returned_binds_up_to_the_end() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["spec"] = TensorSpec((2,), "float32")
    nodes = [graph.call_function(torch.neg, (x,)) for _ in range(4)]
    nodes[1].meta["spec"] = {"cache": Opaque("Cache")}
    graph.output(tuple(nodes))
    assert legal_cuts(capture_of(graph)) == (1,)


def test_a_reason_names_the_user_s_lines() -> None:
    capture = chain_capture(3)
    capture.body[0].meta["storages"] = (1,)
    capture.body[1].meta["mutates"] = (1,)
    reason = why_illegal(capture, 1)
    assert reason is not None
    assert "'neg' (model.py:1 in forward)" in reason
    assert "'neg_1' (model.py:2 in forward)" in reason


def force(model: Function, x: torch.Tensor) -> torch.Tensor:
    y = x.detach().requires_grad_()
    energy = y.exp().sum()
    (found,) = torch.autograd.grad(energy, y, create_graph=True)
    return found.neg()


def test_what_is_differentiated_by_stays_with_the_gradient() -> None:
    capture = trace(Function(force), (torch.randn(4, 4),))
    names = [node.name for node in capture.body]
    assert names == ["detach", "requires_grad", "exp", "sum_1", "grad", "getitem", "neg"]
    assert legal_cuts(capture) == (1, 6)
    assert "differentiates by" in illegal(capture)["exp"]


def test_an_input_that_is_differentiated_by_binds_its_readers() -> None:
    def function(model: Function, x: torch.Tensor) -> torch.Tensor:
        before = torch.ones(4).exp()
        return torch.autograd.grad((x.exp() * before).sum(), x, create_graph=True)[0].neg()

    capture = trace(Function(function), (torch.randn(4, 4, requires_grad=True),))
    assert [capture.body[cut].name for cut in legal_cuts(capture)][-1] == "neg"
    assert "differentiates by" in illegal(capture)["mul"]


def test_a_parameter_that_is_differentiated_by_binds_all_before() -> None:
    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x).exp().sum()
            (found,) = torch.autograd.grad(y, self.linear.weight, create_graph=True)
            return y + found.sum()

    capture = trace(Penalised(), (torch.randn(4, 4),))
    assert [capture.body[cut].name for cut in legal_cuts(capture)] == ["sum_2", "add"]


def test_a_hook_stays_with_the_first_reader_of_what_it_looks_at() -> None:
    def function(model: Function, x: torch.Tensor) -> torch.Tensor:
        y = x.neg()
        z = y.exp()
        y.register_hook(lambda gradient: gradient * 2)
        return y + z

    capture = trace(Function(function), (torch.randn(4, 4, requires_grad=True),))
    assert [capture.body[cut].name for cut in legal_cuts(capture)] == ["exp", "add"]
    assert "hooks into" in illegal(capture)["call_hook"]
