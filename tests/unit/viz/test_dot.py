from __future__ import annotations

import re

from fxpipe.viz.dot import graph_dot
from tests.unit.viz.examples import GRAPH, NAMES, PLAN


def test_stages_are_clusters_of_their_modules() -> None:
    text = graph_dot(GRAPH, PLAN, NAMES)
    clusters = re.findall(r"subgraph cluster_(\d) \{(.*?)\n  \}", text, re.DOTALL)
    assert [number for number, _ in clusters] == ["0", "1", "2"]
    assert 'label="stage 2"' in clusters[2][1]
    assert r'label="up.cat\lup.conv\l"' in clusters[2][1]


def test_portals_are_dashed_and_other_edges_are_not() -> None:
    lines = graph_dot(GRAPH, PLAN, NAMES).splitlines()
    edges = [line.strip() for line in lines if "->" in line]
    dashed = [edge for edge in edges if "dashed" in edge]
    assert len(edges) == 4
    assert len(dashed) == 1
    assert dashed[0].startswith("s0 -> s2 ")
    assert 'label="skip · 2 MiB"' in dashed[0]


def test_braces_balance_and_quotes_are_escaped() -> None:
    text = graph_dot(GRAPH, PLAN, {**NAMES, "conv": 'say "hi"'})
    assert text.count("{") == text.count("}")
    assert r"say \"hi\"" in text


def test_stages_without_a_plan_are_empty() -> None:
    assert 's0 [label=" "];' in graph_dot(GRAPH)
