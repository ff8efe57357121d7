from __future__ import annotations

from hypothesis import given

from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph
from tests.unit.ir.strategies import stage_graphs

FLOAT = TensorSpec((2,), "float32", requires_grad=True)


def test_what_passes_over_a_stage_is_a_portal() -> None:
    assert not Edge("x", 0, (1,)).is_portal
    assert Edge("x", 0, (1, 2)).is_portal
    assert Edge("x", 0, (3,)).is_portal
    assert not Edge("x", HOST, (0, 3)).is_portal


def test_gradients_go_down_the_chain_of_readers() -> None:
    edge = Edge("x", 0, (2, 3, 5), FLOAT)
    assert [edge.next_reader(stage) for stage in (0, 2, 3, 5)] == [2, 3, 5, None]
    assert [edge.previous_holder(stage) for stage in (5, 3, 2)] == [3, 2, 0]
    assert Edge("x", HOST, (1, 2)).previous_holder(1) == HOST


@given(stage_graphs())
def test_every_gradient_that_is_handed_down_is_received(graph: StageGraph) -> None:
    handed = {
        (edge.previous_holder(reader), reader)
        for edge in (*graph.inputs, *graph.edges)
        if edge.is_differentiable
        for reader in edge.consumers
        if edge.previous_holder(reader) != HOST
    }
    received = {(s, later) for s in range(graph.num_stages) for later in graph.consumers(s)}
    assert handed == received


@given(stage_graphs())
def test_what_is_read_is_written(graph: StageGraph) -> None:
    stages = range(graph.num_stages)
    read = {(e.value, s) for s in stages for e in graph.reads(s) if e.producer != HOST}
    written = {(e.value, s) for w in stages for e in graph.writes(w) for s in e.consumers}
    assert read == written
    for stage in stages:
        makers = {e.producer for e in graph.reads(stage)} - {HOST}
        assert set(graph.producers(stage)) == makers


def test_text() -> None:
    assert str(Edge("x", HOST, (0, 2), FLOAT)) == "edge x: caller → 0, 2 (8 B)"
    assert str(Edge("x", 0, (2,), FLOAT)) == "portal x: 0 → 2 (8 B)"
