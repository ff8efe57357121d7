from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

from hypothesis import given, settings

from fxpipe.ir.stage import StageGraph
from fxpipe.viz.graph_svg import graph_svg
from fxpipe.viz.palette import EDGE, INPUT, PORTAL
from tests.unit.ir.strategies import stage_graphs
from tests.unit.viz.examples import GRAPH, NAMES, PLAN

NAMESPACE = {"s": "http://www.w3.org/2000/svg"}


def _root(graph: StageGraph = GRAPH) -> ET.Element:
    return ET.fromstring(graph_svg(graph, PLAN if graph is GRAPH else None, NAMES, title="U-Net"))


def _arrows(root: ET.Element) -> list[ET.Element]:
    """Those of values: the legend's have no tip."""
    paths = root.findall("s:path", NAMESPACE)
    return [path for path in paths if path.find("s:title", NAMESPACE) is not None]


def test_stages_show_what_they_consist_of() -> None:
    texts = [text.text for text in _root().iterfind("s:text", NAMESPACE)]
    for text in ("U-Net", "stage 0", "stage 1", "stage 2", "down.conv", "middle", "up.cat"):
        assert text in texts


def test_edges_carry_their_bytes() -> None:
    texts = [text.text for text in _root().iterfind("s:text", NAMESPACE)]
    assert "skip · 2 MiB" in texts
    assert "down" in texts
    assert "1 MiB" in texts
    assert "up<1>" in texts


def test_portals_are_dashed_and_coloured() -> None:
    looks = {
        (arrow.findtext("s:title", namespaces=NAMESPACE) or "").split(":")[0]: (
            arrow.get("stroke"),
            arrow.get("stroke-dasharray") is not None,
        )
        for arrow in _arrows(_root())
    }
    assert looks == {
        "image": (INPUT, False),
        "down": (EDGE, False),
        "up<1>": (EDGE, False),
        "skip": (PORTAL, True),
    }


@given(stage_graphs())
@settings(max_examples=30)
def test_every_value_is_drawn_once_per_reader(graph: StageGraph) -> None:
    drawn = [
        line.split(":")[0]
        for arrow in _arrows(_root(graph))
        for line in (arrow.findtext("s:title", namespaces=NAMESPACE) or "").splitlines()
    ]
    wanted = [e.value for e in (*graph.inputs, *graph.edges) for _ in e.consumers]
    assert sorted(drawn) == sorted(wanted)


@given(stage_graphs(stages=7))
@settings(max_examples=30)
def test_portals_of_one_height_do_not_overlap(graph: StageGraph) -> None:
    spans: dict[str, list[tuple[float, float]]] = {}
    for arrow in _arrows(_root(graph)):
        if arrow.get("stroke") == PORTAL:
            # M x1,y L x1,y Q x1,top x1,top L x2,top …: the flat piece of the arc
            words = (
                (arrow.get("d") or "").replace("M", "").replace("L", "").replace("Q", "").split()
            )
            (left, top), (right, _) = (word.split(",") for word in (words[3], words[4]))
            spans.setdefault(top, []).append((float(left), float(right)))
    for flat in spans.values():
        flat.sort()
        for (_, end), (start, _) in itertools.pairwise(flat):
            assert end < start
