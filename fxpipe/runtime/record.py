"""The measured `Timeline`: when each rank computed what."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

from fxpipe.ir.action import Action
from fxpipe.ir.timeline import Span, Timeline


class Record:
    """The computations of one step, noted by the ranks while they run.

    Attributes:
        ranks: per rank, its actions with their start and end in nanoseconds.
    """

    def __init__(self, ranks: int) -> None:
        self._start = perf_counter_ns()
        self.ranks: list[list[tuple[Action, int, int]]] = [[] for _ in range(ranks)]

    def timeline(self) -> Timeline:
        """The record as a timeline; its zero is when the record was begun."""
        spans = [span for rank, noted in enumerate(self.ranks) for span in self._spans(rank, noted)]
        return Timeline(tuple(spans), "run")

    def _spans(self, rank: int, noted: Sequence[tuple[Action, int, int]]) -> list[Span]:
        zero = self._start
        return [
            Span(rank, action, (start - zero) * 1e-9, (end - zero) * 1e-9)
            for action, start, end in noted
        ]
