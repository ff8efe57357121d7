from __future__ import annotations

from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.viz.bundles import bundles, stage_name

SMALL = TensorSpec((4,), "float32")


def test_values_of_one_way_are_one_line() -> None:
    graph = StageGraph(
        3,
        (Edge("x", HOST, (0, 1), SMALL),),
        (Edge("a", 0, (1,), SMALL), Edge("b", 0, (1, 2), SMALL), Edge("c", 0, (1,), SMALL)),
    )
    assert [(b.source, b.target, b.is_portal, b.label) for b in bundles(graph)] == [
        (HOST, 0, False, "x · 16 B"),
        (HOST, 1, False, "x · 16 B"),
        (0, 1, False, "a, c · 32 B"),
        (0, 1, True, "b · 16 B"),
        (0, 2, True, "b · 16 B"),
    ]


def test_many_values_are_counted() -> None:
    graph = StageGraph(2, (), tuple(Edge(name, 0, (1,), SMALL) for name in "abc"))
    (line,) = bundles(graph)
    assert line.label == "3 values · 48 B"
    assert line.detail.splitlines()[0] == "a: f32[4] (16 B)"


def test_the_caller_has_a_name() -> None:
    assert (stage_name(HOST), stage_name(2)) == ("caller", "stage 2")
