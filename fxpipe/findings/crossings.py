"""Values that are no tensors and go from one stage to another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from fxpipe.analysis.cuts import legal_cuts
from fxpipe.analysis.liveness import lifetimes
from fxpipe.codegen.header import describe
from fxpipe.findings.decisions import written
from fxpipe.ir.capture import Capture
from fxpipe.ir.findings import CrossingFinding
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.spec import TensorSpec
from fxpipe.portals.edges import link


def that_cross(capture: Capture, plan: PartitionPlan) -> Iterator[CrossingFinding]:
    """Those that do under a plan.

    Raises:
        IllegalPlanError: if the plan was made for another capture.
    """
    for edge in link(capture, plan).edges:
        if not isinstance(edge.spec, TensorSpec):
            yield _finding(capture, edge.value, edge.producer, edge.consumers)


def may_cross(capture: Capture) -> Iterator[CrossingFinding]:
    """Those that some plan could make cross: a legal cut lies between their making and last use."""
    cuts = legal_cuts(capture)
    for life in lifetimes(capture):
        following = bisect_right(cuts, life.made)
        crosses = following < len(cuts) and cuts[following] <= life.last
        if crosses and not isinstance(capture.spec(life.value), TensorSpec):
            yield _finding(capture, life.value, None, ())


def _finding(
    capture: Capture, name: str, producer: int | None, consumers: tuple[int, ...]
) -> CrossingFinding:
    node = capture.node(name)
    meta = node.meta
    return CrossingFinding(
        value=name,
        text=describe(meta.get("spec")),
        path=meta.get("path", ""),
        source=meta.get("source") or written(capture, node),
        producer=producer,
        consumers=consumers,
    )
