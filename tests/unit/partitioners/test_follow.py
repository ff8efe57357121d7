from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from fxpipe.capture.trace import trace
from fxpipe.errors import PartitionError
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import NOWHERE, PartitionPlan
from fxpipe.partitioners.assemble import anchor_keys, plan_of
from fxpipe.partitioners.check import check_plan
from fxpipe.partitioners.follow import follow
from tests.builders import build_capture


class Net(nn.Module):
    """Blocks with extra functions between them, in an order that `mode` decides."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))
        self.drop = nn.Dropout(0.5)
        self.mode = "plain"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode == "swapped":
            return self.a(self.c(self.b(x)))
        x = self.a(x)
        if self.mode == "more":
            x = torch.exp(torch.sin(x))
        x = self.drop(x)
        x = self.b(torch.relu(x))
        if self.mode == "skip":
            return torch.tanh(x)
        return self.c(torch.relu(x))


def captures(mode: str) -> tuple[Capture, Capture]:
    net = Net()
    first = build_capture(net, torch.randn(2, 4))
    net.mode = mode
    return first, build_capture(net.eval(), torch.randn(3, 4))


def planned(capture: Capture, *cuts: str) -> PartitionPlan:
    names = [node.name for node in capture.body]
    plan = plan_of(capture, [names.index(cut) for cut in cuts])
    weighty = {name for name in names if name.removeprefix("layers_") in "abc"}
    keys = anchor_keys(capture, weighty)
    anchors = {key: plan.stages[name] for name, found in keys.items() for key in found}
    return replace(plan, anchors=anchors)


def stages(plan: PartitionPlan, names: str = "abc") -> list[int]:
    return [plan.stages[name] for name in names if name in plan.stages]


def test_the_same_graph_keeps_its_plan() -> None:
    first, second = captures("plain")
    plan = planned(first, "b")
    assert follow(plan, first, second) is plan


def test_weights_stay_and_the_cut_goes_where_it_was() -> None:
    first, second = captures("more")
    for cut in ("drop", "relu", "b"):
        plan = planned(first, cut)
        found = follow(plan, first, second)
        check_plan(second, found)
        assert stages(found) == [0, 1, 1]
        assert found.starts == plan.starts
        assert found.anchors == plan.anchors


def test_a_cut_whose_node_is_gone_takes_the_best_place_between_the_weights() -> None:
    _, second = captures("plain")
    first = captures("more")[1]
    plan = planned(first, "exp")
    found = follow(plan, first, second)
    check_plan(second, found)
    assert stages(found) == [0, 1, 1]


def test_an_order_that_does_not_suit_the_stages_is_refused_with_both_nodes() -> None:
    first, second = captures("swapped")
    with pytest.raises(PartitionError, match=r"'a'.* of stage 0 runs after 'c'.* of stage 1"):
        follow(planned(first, "b"), first, second)


def test_a_stage_whose_weights_are_not_used_gets_what_lies_around() -> None:
    first, second = captures("skip")
    found = follow(planned(first, "b", "c"), first, second)
    check_plan(second, found)
    assert found.num_stages == 3
    assert stages(found, "ab") == [0, 1]
    assert found.nodes_of(2) == ("tanh",)


class Some(nn.Module):
    """Calls the modules that it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(4, 4) for name in "abc"})
        self.called = "abc"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.called:
            x = self.layers[name](x)
        return x


@pytest.mark.parametrize(
    ("called", "idle", "starts"),
    [
        ("a", (1, 2), (NOWHERE, NOWHERE)),
        ("b", (0, 2), ("layers.b", NOWHERE)),
        ("c", (0, 1), (NOWHERE, "layers.c")),
        ("ac", (1,), (NOWHERE, "layers.c")),
        ("bc", (0,), ("layers.b", "layers.c")),
    ],
)
def test_a_stage_of_which_nothing_is_called_is_idle(
    called: str, idle: tuple[int, ...], starts: tuple[str, ...]
) -> None:
    net = Some()
    first = build_capture(net, torch.randn(2, 4))
    net.called = called
    second = build_capture(net, torch.randn(2, 4))
    found = follow(planned(first, "layers_b", "layers_c"), first, second)
    check_plan(second, found)
    assert found.num_stages == 3
    assert {name: f"layers_{'abc'[at]}" for name, at in found.stages.items()} == {
        f"layers_{name}": f"layers_{name}" for name in called
    }
    assert (found.idle, found.starts) == (idle, starts)


def test_no_place_for_a_cut_is_said() -> None:
    class Together(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.at_once = nn.Linear(4, 4), nn.Linear(4, 4), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad() if self.at_once else nullcontext():
                return self.b(self.a(x))

    net = Together()
    first = trace(net, (torch.randn(2, 4),))
    net.at_once = True
    second = trace(net, (torch.randn(2, 4),))
    with pytest.raises(
        PartitionError, match="no place where it may be cut, for some of the 1 cuts"
    ):
        follow(planned(first, "b"), first, second)


def test_a_plan_saved_without_anchors_binds_every_module_call() -> None:
    first, second = captures("more")
    plan = replace(planned(first, "b"), anchors={})
    found = follow(plan, first, second)
    assert found.anchors == {"a#0": 0, "drop#0": 0, "b#0": 1, "c#0": 1}


def test_weights_of_two_stages_in_one_node_are_refused() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v, self.w = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
            self.both = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.both:
                return torch.addcmul(x, self.v, self.w).exp()
            return (x * self.v).exp() * self.w

    net = Mixed()
    first = build_capture(net, torch.randn(2, 4))
    net.both = True
    second = build_capture(net, torch.randn(2, 4))
    with pytest.raises(PartitionError, match=r"'addcmul'.* reads weights of stages \[0, 1\]"):
        follow(planned(first, "mul_1"), first, second)
