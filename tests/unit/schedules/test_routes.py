from __future__ import annotations

from collections import Counter

from hypothesis import given

from fxpipe.ir.action import Kind, Payload
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import Edge, StageGraph
from fxpipe.schedules.routes import routes_in, routes_out
from tests.unit.ir.strategies import stage_graphs

FLOAT = TensorSpec((2,), "float32", requires_grad=True)
GRAPH = StageGraph(
    3, (), (Edge("x", 0, (1, 2), FLOAT), Edge("mask", 0, (2,), TensorSpec((2,), "bool")))
)


def test_values_go_straight_and_gradients_down_the_chain_of_readers() -> None:
    assert list(routes_out(Kind.FORWARD, 0, GRAPH)) == [
        (Payload.ACTIVATION, "x", 0, 1),
        (Payload.ACTIVATION, "x", 0, 2),
        (Payload.ACTIVATION, "mask", 0, 2),
    ]
    assert list(routes_out(Kind.BACKWARD, 2, GRAPH)) == [(Payload.GRADIENT, "x", 2, 1)]
    assert list(routes_in(Kind.BACKWARD_INPUT, 0, GRAPH)) == [(Payload.GRADIENT, "x", 1, 0)]


def test_a_weight_half_and_a_recomputation_hand_nothing_on() -> None:
    for kind in (Kind.BACKWARD_WEIGHT, Kind.RECOMPUTE):
        assert list(routes_in(kind, 1, GRAPH)) == list(routes_out(kind, 1, GRAPH)) == []


@given(stage_graphs())
def test_what_goes_out_comes_in(graph: StageGraph) -> None:
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        stages = range(graph.num_stages)
        out = Counter(way for stage in stages for way in routes_out(kind, stage, graph))
        into = Counter(way for stage in stages for way in routes_in(kind, stage, graph))
        assert out == into
