"""Timelines as words."""

from __future__ import annotations

from fxpipe.ir.action import Compute
from fxpipe.ir.timeline import Span, Timeline


def timeline_of(*rows: str, source: str = "run") -> Timeline:
    """A row of ``action@start-end`` per rank."""
    spans = []
    for rank, row in enumerate(rows):
        for word in row.split():
            action, _, times = word.partition("@")
            start, end = map(float, times.split("-"))
            spans.append(Span(rank, Compute.from_text(action), start, end))
    return Timeline(tuple(spans), source)
