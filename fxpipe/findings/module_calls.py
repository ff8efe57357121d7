"""The module calls of a capture: how large they are, and what a plan makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from fxpipe.ir.capture import Capture, Span
from fxpipe.ir.cost import CostProfile
from fxpipe.ir.findings import SpanFinding
from fxpipe.portals.calls import SpanFate


def span_findings(
    capture: Capture,
    fates: Sequence[SpanFate] | None,
    costs: CostProfile | None,
    classes: Mapping[str, str],
) -> tuple[SpanFinding, ...]:
    """One for each span of the capture, in their order.

    Args:
        capture: whose spans.
        fates: what becomes of them under a plan, if there is one.
        costs: for the shares.
        classes: module path → name of its class, where it is known.
    """
    sizes = _Sizes(capture, costs)
    found = []
    for index, span in enumerate(capture.spans):
        nodes, share = sizes.of(span)
        fate = None if fates is None else fates[index]
        found.append(
            SpanFinding(
                path=span.path,
                call=span.call,
                module_class=classes.get(span.path, ""),
                parent=span.parent,
                nodes=nodes,
                share=share,
                fate=None if fate is None else fate.fate,
                stages=() if fate is None else fate.stages,
                reason=(span.fixed or "") if fate is None else fate.reason,
            )
        )
    return tuple(found)


class _Sizes:
    """Nodes and cost of runs of the body, by sums up to every position."""

    def __init__(self, capture: Capture, costs: CostProfile | None) -> None:
        names = [node.name for node in capture.body]
        self._position = {name: index for index, name in enumerate(names)}
        self._sums: list[float] | None = None
        if costs is not None:
            self._sums = [0.0, *accumulate(costs.nodes[name].total for name in names)]

    def of(self, span: Span) -> tuple[int, float | None]:
        """How many nodes a span has, and their share of the cost."""
        where = [self._position[name] for name in span.nodes if name in self._position]
        if self._sums is None or not where:
            return len(where), None if self._sums is None else 0.0
        total = self._sums[-1]
        cost = self._sums[max(where) + 1] - self._sums[min(where)]
        return len(where), cost / total if total else 0.0
