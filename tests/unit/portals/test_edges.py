from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxpipe.errors import IllegalPlanError
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge
from fxpipe.portals.edges import link
from tests.builders import build_capture, plan_at


class Skip(nn.Module):
    """x is read by the first and the last stage, `early` by all after it, and is returned too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x, mask, unused):
        early = F.relu(x)
        middle = early * self.scale
        late = torch.sigmoid(middle + early)
        return late * mask * self.scale, early, mask, 3


@pytest.fixture
def capture():
    return build_capture(Skip(), *(torch.randn(2, 3, requires_grad=True) for _ in range(3)))


def names(edges: tuple[Edge, ...]) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(edge.value, edge.producer, edge.consumers) for edge in edges]


def test_edges_follow_the_readers(capture) -> None:
    graph = link(capture, plan_at(capture, "mul", "add", "sigmoid"))
    assert graph.num_stages == 4
    assert names(graph.inputs) == [("x", HOST, (0,)), ("mask", HOST, (3,))]
    assert names(graph.edges) == [("relu", 0, (1, 2, 3)), ("mul", 1, (2,)), ("add", 2, (3,))]
    assert [edge.value for edge in graph.portals] == ["relu"]


def test_the_last_stage_reads_what_is_returned(capture) -> None:
    graph = link(capture, plan_at(capture, "sigmoid", "mul_1"))
    assert graph.outputs == ("mul_2", "relu", "mask", None)
    assert graph.constants == {3: 3}
    assert ("relu", 0, (2,)) in names(graph.edges)
    assert ("mask", HOST, (2,)) in names(graph.inputs)


def test_parameters_do_not_cross(capture) -> None:
    """Both stages read `scale`, which each is bound to."""
    graph = link(capture, plan_at(capture, "add"))
    assert {edge.value for edge in graph.edges} == {"relu", "mul"}


def test_edges_carry_shapes(capture) -> None:
    graph = link(capture, plan_at(capture, "mul"))
    assert graph.edges[0].spec == TensorSpec((2, 3), "float32", requires_grad=True)
    assert graph.edges[0].nbytes == 24


def test_one_stage_has_no_edges(capture) -> None:
    graph = link(capture, plan_at(capture))
    assert graph.edges == ()
    assert [edge.value for edge in graph.inputs] == ["x", "mask"]


class Unused(nn.Module):
    """`inner` is handed a second value that it does not look at."""

    class Inner(nn.Module):
        def forward(self, x, position):
            return torch.tanh(x) * 2

    def __init__(self) -> None:
        super().__init__()
        self.inner = Unused.Inner()

    def forward(self, x):
        position = x + 1
        return self.inner(torch.relu(x), position)


def test_an_argument_nobody_computes_with_still_crosses() -> None:
    """The call of `inner` stands whole in the second stage: it has to get all its arguments there."""
    capture = build_capture(Unused(), torch.randn(2))
    graph = link(capture, plan_at(capture, "tanh"))
    assert names(graph.edges) == [("add", 0, (1,)), ("relu", 0, (1,))]
    divided = link(capture, plan_at(capture, "mul"))
    assert names(divided.edges) == [("tanh", 0, (1,))]


class TestRefusals:
    def test_a_stale_plan(self, capture) -> None:
        plan = plan_at(capture, "mul")
        with pytest.raises(IllegalPlanError, match=r"made for the capture 0123.*partition again"):
            link(capture, PartitionPlan(plan.stages, "0123"))

    def test_every_fault_is_listed(self, capture) -> None:
        stages = dict(plan_at(capture, "add").stages) | {"relu": 1, "ghost": 0}
        del stages["sigmoid"]
        with pytest.raises(IllegalPlanError) as refused:
            link(capture, PartitionPlan(stages, capture.fingerprint()))
        message = str(refused.value)
        assert "sigmoid has no stage" in message
        assert "ghost is no node" in message
        assert "mul is in stage 0, but relu before it is already in stage 1" in message
        assert message.count("•") == 3

    def test_a_capture_that_computes_nothing(self) -> None:
        capture = build_capture(nn.Sequential(), torch.randn(2))
        with pytest.raises(IllegalPlanError, match="computes nothing"):
            link(capture, PartitionPlan({}, capture.fingerprint()))
