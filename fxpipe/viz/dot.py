"""Stage graphs in Graphviz's DOT language."""

from __future__ import annotations

from collections.abc import Mapping

from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.stage import HOST, StageGraph
from fxpipe.viz.bundles import Bundle, bundles
from fxpipe.viz.labels import stage_rows
from fxpipe.viz.palette import EDGE, INPUT, PORTAL, stage_fill


def graph_dot(
    graph: StageGraph,
    plan: PartitionPlan | None = None,
    names: Mapping[str, str] | None = None,
) -> str:
    """DOT text: a cluster per stage with its modules, portals dashed, bytes on the edges.

    Args:
        graph: the stages and the values between them.
        plan: what each stage consists of; stages are empty boxes without it.
        names: node name → label (see `fxpipe.viz.labels.labels`).
    """
    lines = [
        "digraph stages {",
        '  rankdir=LR; compound=true; fontname="Helvetica";',
        '  node [shape=box, style="filled,rounded", fillcolor=white];',
        '  node [fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=9];',
    ]
    if graph.inputs:
        lines.append("  caller [shape=plaintext, style=solid];")
    for stage in range(graph.num_stages):
        rows = stage_rows(plan, names or {}, stage) if plan is not None else ()
        text = "".join(f"{_escape(row)}\\l" for row in rows) or " "
        lines += [
            f"  subgraph cluster_{stage} {{",
            f'    label="stage {stage}"; style="filled,rounded"; color="#9aa5b1"; '
            f'fillcolor="{stage_fill(stage)}";',
            f'    s{stage} [label="{text}"];',
            "  }",
        ]
    lines += [f"  {_edge(bundle)}" for bundle in bundles(graph)]
    return "\n".join([*lines, "}", ""])


def _edge(bundle: Bundle) -> str:
    source = "caller" if bundle.source == HOST else f"s{bundle.source}"
    tail = "" if bundle.source == HOST else f"ltail=cluster_{bundle.source}, "
    if bundle.is_portal:
        look = f'color="{PORTAL}", fontcolor="{PORTAL}", style=dashed, constraint=false'
    else:
        colour = INPUT if bundle.source == HOST else EDGE
        look = f'color="{colour}", fontcolor="{colour}"'
    head = f'lhead=cluster_{bundle.target}, label="{_escape(bundle.label)}"'
    return f"{source} -> s{bundle.target} [{tail}{head}, {look}];"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
