"""The measured `Timeline`: when each rank computed what."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

from fxpipe.ir.action import Action, Compute, Kind
from fxpipe.ir.timeline import Span, Timeline


class Record:
    """The computations of one step, noted by the ranks while they run.

    Attributes:
        ranks: per rank, its actions with their start and end in nanoseconds.
    """

    def __init__(self, ranks: int) -> None:
        self._start = perf_counter_ns()
        self.ranks: list[list[tuple[Action, int, int]]] = [[] for _ in range(ranks)]

    def shortest(self) -> float:
        """Seconds that a stage's action takes when nothing holds it up: the mean of their minima."""
        least: dict[tuple[Kind, int], int] = {}
        for noted in self.ranks:
            for action, start, end in noted:
                if isinstance(action, Compute):
                    key = (action.kind, action.stage)
                    least[key] = min(least.get(key, end - start), end - start)
        return sum(least.values()) * 1e-9 / len(least) if least else 0.0

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
