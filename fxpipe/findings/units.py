"""Runs of nodes that no cut can divide: the largest one bounds how even stages can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

import torch.fx

from fxpipe.analysis.cuts import bonds, legal_cuts
from fxpipe.ir.capture import Capture
from fxpipe.ir.cost import CostProfile
from fxpipe.ir.findings import UnitFinding


def largest_unit(capture: Capture, costs: CostProfile | None) -> UnitFinding | None:
    """The unit with the largest share of the cost, or of the nodes; None if nothing is computed."""
    units = list(_units(capture))
    if not units:
        return None
    if costs is None:
        start, end = max(units, key=lambda unit: unit[1] - unit[0])
        return _finding(capture, start, end, None)
    weights = [costs.nodes[node.name].total for node in capture.body]
    start, end = max(units, key=lambda unit: sum(weights[slice(*unit)]))
    total = sum(weights)
    return _finding(capture, start, end, sum(weights[start:end]) / total if total else 0.0)


def _units(capture: Capture) -> Iterator[tuple[int, int]]:
    size = len(capture.body)
    if size:
        yield from pairwise((0, *legal_cuts(capture), size))


def _finding(capture: Capture, start: int, end: int, share: float | None) -> UnitFinding:
    nodes = capture.body[start:end]
    return UnitFinding(
        first=nodes[0].name,
        last=nodes[-1].name,
        nodes=len(nodes),
        path=_common_path(nodes),
        share=share,
        reason=_whole(capture, nodes[0]) if len(nodes) == 1 else _bound(capture, start, end),
    )


def _common_path(nodes: Sequence[torch.fx.Node]) -> str:
    """Path of the innermost module around some nodes."""
    paths = [
        str(node.target if node.op == "call_module" else node.meta.get("path", "")).split(".")
        for node in nodes
    ]
    alike = takewhile(lambda steps: len(set(steps)) == 1, zip(*paths, strict=False))
    return ".".join(steps[0] for steps in alike)


def _whole(capture: Capture, node: torch.fx.Node) -> str:
    """Why a node is not several."""
    if node.op != "call_module":
        return "a single operation"
    leaf = next((each for each in capture.leaves if each.path == node.target), None)
    return "a single layer" if leaf is None else f"a module that stays whole: {leaf.reason}"


def _bound(capture: Capture, start: int, end: int) -> str:
    """The reason of the widest bond in a unit, and how many others there are."""
    inside = [each for each in bonds(capture) if start <= each.first and each.last < end]
    widest = max(inside, key=lambda each: each.last - each.first)
    others = len({each.reason for each in inside} - {widest.reason})
    return f"{widest.reason} (and {others} more such bonds)" if others else widest.reason
