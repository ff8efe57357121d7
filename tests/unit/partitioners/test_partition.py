import pytest
import torch
from torch import nn

from fxpipe.analysis.estimate import estimate
from fxpipe.errors import IllegalPlanError, InfeasiblePlanError, PartitionError
from fxpipe.ir.capture import LeafReport
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.spec import TensorSpec
from fxpipe.partitioners.check import check_plan
from fxpipe.partitioners.partition import partition
from tests.builders import build_capture
from tests.captures import chain_capture, costs_of


def stage_sizes(costs: list[float], stages: int) -> list[int]:
    capture = chain_capture(len(costs))
    plan = partition(capture, costs_of(capture, costs), stages)
    check_plan(capture, plan)
    return [len(plan.nodes_of(stage)) for stage in range(stages)]


@pytest.mark.parametrize(
    ("costs", "stages", "sizes"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([1, 1, 4, 1, 1], 3, [2, 1, 2]),
        ([9, 1, 1, 1], 2, [1, 3]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], 3, [5, 2, 2]),
        ([1], 1, [1]),
    ],
)
def test_stages_are_balanced(costs: list[float], stages: int, sizes: list[int]) -> None:
    assert stage_sizes(costs, stages) == sizes


def test_nodes_that_cost_nothing_make_no_stage_of_their_own() -> None:
    # Without care, the last stage could be the two nodes that cost nothing.
    sizes = stage_sizes([5, 0, 0, 5, 5, 0, 0], 3)
    assert sizes in ([3, 1, 3], [1, 3, 3], [2, 2, 3])


def test_transfers_are_priced_with_the_cluster_s_link() -> None:
    wide = TensorSpec((1000,), "float32", True)
    capture = chain_capture(4, wide)
    capture.body[0].meta["spec"] = TensorSpec((1,), "float32", True)
    costs = costs_of(capture, [1, 1, 1, 1])
    assert partition(capture, costs, 2).starts == ("neg_2",)
    slow = Cluster(ranks=2, bandwidth=1000.0)
    assert partition(capture, costs, 2, cluster=slow).starts == ("neg_1",)


def test_cuts_of_the_user_s_are_taken() -> None:
    capture = chain_capture(6)
    plan = partition(capture, costs_of(capture, [1] * 6), 3, cuts=["neg_5", "neg_1"])
    assert plan.starts == ("neg_1", "neg_5")
    with pytest.raises(PartitionError, match="1 cuts make 2 stages, but 3 are asked for"):
        partition(capture, costs_of(capture, [1] * 6), 3, cuts=["neg_1"])


def test_costs_of_another_capture_are_refused() -> None:
    with pytest.raises(PartitionError, match="made for another graph"):
        partition(chain_capture(4), costs_of(chain_capture(3), [1, 1, 1]), 2)


def test_fewer_than_one_stage_is_refused() -> None:
    with pytest.raises(PartitionError, match="at least one stage, got 0"):
        partition(chain_capture(2), costs_of(chain_capture(2), [1, 1]), 0)


def test_too_many_stages_say_how_many_are_possible_and_why() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    capture = build_capture(net, torch.randn(2, 4))
    object.__setattr__(capture, "leaves", (LeafReport("0", "Linear", "it looks at data"),))
    with pytest.raises(InfeasiblePlanError) as error:
        partition(capture, estimate(capture, net), 3)
    text = str(error.value)
    assert "3 stages were asked for, but at most 2 are possible" in text
    assert "3 nodes and 1 places to cut" in text
    assert "'_1'" in text
    assert "written in place since '_0'" in text
    assert "1 modules stay whole ('0': it looks at data)" in text


def test_the_most_stages_that_are_possible_work() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    capture = build_capture(net, torch.randn(2, 4))
    plan = partition(capture, estimate(capture, net), 2)
    check_plan(capture, plan)
    assert plan.anchors == {"0#0": 0, "2#0": 1}


def test_illegal_cuts_are_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    capture = build_capture(net, torch.randn(2, 4))
    with pytest.raises(IllegalPlanError):
        partition(capture, estimate(capture, net), 2, cuts=["1"])


class Blocks(nn.Module):
    """Equal blocks: a cut in the middle of one would do as well for the bottleneck."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
            for _ in range(count)
        )
        for block in self.blocks:
            block.__class__ = Block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Block(nn.Sequential):
    """Looked through by the tracer, as it is no class of torch.nn."""


@pytest.mark.parametrize(("blocks", "stages"), [(4, 2), (6, 3), (8, 4)])
def test_stages_start_at_modules_where_the_balance_allows(blocks: int, stages: int) -> None:
    net = Blocks(blocks)
    capture = build_capture(net, torch.randn(2, 8))
    costs = costs_of(capture, [1.0, 1.002, 0.999, 1.0] * blocks)
    step = blocks // stages
    expected = tuple(f"blocks.{index}" for index in range(step, blocks, step))
    assert partition(capture, costs, stages).starts == expected


def test_a_graph_of_thousands_of_nodes_is_cut_evenly() -> None:
    capture = chain_capture(2000)
    costs = [1.0 + (i * 7919 % 13) / 13 for i in range(2000)]
    profile = costs_of(capture, costs)
    plan = partition(capture, profile, 16)
    stages = [profile.over(plan.nodes_of(stage)) for stage in range(16)]
    assert max(stage.forward + stage.backward for stage in stages) <= sum(costs) / 16 + 2
