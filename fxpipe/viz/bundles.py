"""The edges of a stage graph as a drawing shows them: one line per pair of stages and kind."""

from __future__ import annotations

from dataclasses import dataclass

from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.viz.units import bytes_text

_NAMED = 2
"""Values named on a line; more are counted."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """All values that go from one stage (or the caller, `HOST`) to another by the same route."""

    source: int
    target: int
    is_portal: bool
    edges: tuple[Edge, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all values together."""
        return sum(edge.nbytes for edge in self.edges)

    @property
    def label(self) -> str:
        """Names and bytes, on one line."""
        names = [edge.value for edge in self.edges]
        listed = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} values"
        return f"{listed} · {bytes_text(self.nbytes)}"

    @property
    def detail(self) -> str:
        """Every value with its shape."""
        return "\n".join(
            f"{edge.value}: {edge.spec} ({bytes_text(edge.nbytes)})" for edge in self.edges
        )


def bundles(graph: StageGraph) -> tuple[Bundle, ...]:
    """The lines of a drawing: from the caller first, then by source and target."""
    found: dict[tuple[int, int, bool], list[Edge]] = {}
    for edge in (*graph.inputs, *graph.edges):
        for reader in edge.consumers:
            found.setdefault((edge.producer, reader, edge.is_portal), []).append(edge)
    return tuple(Bundle(*key, tuple(edges)) for key, edges in sorted(found.items()))


def stage_name(stage: int) -> str:
    """How drawings call a stage."""
    return "caller" if stage == HOST else f"stage {stage}"
