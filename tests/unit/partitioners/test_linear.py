import pytest
import torch
from torch import nn

from fxpipe import ops
from fxpipe.ir.cluster import Cluster
from fxpipe.partitioners.linear import LINK, chain_of, divided_calls, makes_data
from fxpipe.partitioners.rows import Traffic
from tests.builders import build_capture
from tests.captures import chain_capture, costs_of


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.tail = Inner(), Inner(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = self.first(x)
        return self.tail(self.second(early)).view(2, 2, 2) + early.view(2, 2, 2)


def test_a_cut_costs_one_per_module_call_it_divides() -> None:
    capture = build_capture(nn.Sequential(Outer()), torch.randn(2, 4))
    # before:                       a  b  a  b  t  v  v  +  end
    assert divided_calls(capture) == [0, 2, 1, 2, 1, 1, 1, 1, 0]


def test_calls_that_cannot_be_made_again_are_free_to_divide() -> None:
    capture = build_capture(Outer(), torch.randn(2, 4))
    assert max(divided_calls(capture)) == 1
    for span in capture.spans:
        object.__setattr__(span, "fixed", "reads something else")
    assert max(divided_calls(capture)) == 0


def test_calls_that_decide_on_their_data_count_twice() -> None:
    capture = build_capture(Outer(), torch.randn(2, 4))
    capture.node("second_a").target = ops.check_value
    assert divided_calls(capture) == [0, 1, 0, 2, 0, 0, 0, 0, 0]


def test_traffic_has_the_sizes_and_readers_of_the_graph() -> None:
    capture = build_capture(Outer(), torch.randn(2, 4))
    costs = costs_of(capture, range(1, 9))
    chain = chain_of(capture, costs, Cluster(2, latency=1.0, bandwidth=32.0))
    assert chain.work == pytest.approx(list(range(1, 9)))
    assert chain.traffic[1] == Traffic(1, (2, 6), 2.0, True)
    assert all(value.made >= 0 for value in chain.traffic)
    nominal = chain_of(capture, costs, None).traffic[1]
    assert nominal.seconds == LINK.transfer_time(32)


def test_views_and_nodes_without_cost_make_no_stage() -> None:
    capture = build_capture(Outer(), torch.randn(2, 4))
    assert [makes_data(node) for node in capture.body] == [True] * 5 + [False] * 2 + [True]
    costs = costs_of(capture, [0, 1, 1, 1, 1, 1, 1, 1])
    assert chain_of(capture, costs, None).solid == [
        False, True, True, True, True, False, False, True,
    ]  # fmt: skip


def test_where_nothing_is_known_of_memory_a_node_counts() -> None:
    assert all(makes_data(node) for node in chain_capture(3).body)
