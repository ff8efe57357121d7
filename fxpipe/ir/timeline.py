"""`Timeline`: what ran (or would run) when. Predicted and measured ones are the same type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fxpipe.ir.action import Action, Compute, Update


@dataclass(frozen=True, slots=True)
class Span:
    """An action of a rank, from `start` to `end` in seconds since the step began."""

    rank: int
    action: Action
    start: float
    end: float

    @property
    def duration(self) -> float:
        """Seconds it took."""
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """The spans of one step.

    Attributes:
        spans: ordered by rank, then by start.
        source: ``"simulate"`` or ``"run"``.
        peak_bytes: per rank, the largest sum of bytes kept for backward; empty if not known.
    """

    spans: tuple[Span, ...]
    source: str
    peak_bytes: tuple[int, ...] = ()

    @cached_property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return 1 + max((span.rank for span in self.spans), default=-1)

    @cached_property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        if not self.spans:
            return 0.0
        return max(span.end for span in self.spans) - min(span.start for span in self.spans)

    @cached_property
    def _work(self) -> dict[int, tuple[Span, ...]]:
        """Rank → its computations and updates."""
        found: dict[int, list[Span]] = {}
        for span in self.spans:
            if isinstance(span.action, Compute | Update):
                found.setdefault(span.rank, []).append(span)
        return {rank: tuple(spans) for rank, spans in found.items()}

    @cached_property
    def _computes(self) -> dict[int, tuple[Span, ...]]:
        """Rank → its computations."""
        return {
            rank: tuple(span for span in spans if isinstance(span.action, Compute))
            for rank, spans in self._work.items()
        }

    def work_spans(self, rank: int) -> tuple[Span, ...]:
        """A rank's computations and updates, in order."""
        return self._work.get(rank, ())

    def compute_spans(self, rank: int) -> tuple[Span, ...]:
        """A rank's computations, in order."""
        return self._computes.get(rank, ())

    def busy(self, rank: int) -> float:
        """Seconds a rank computed, updates included."""
        return sum(span.duration for span in self.work_spans(rank))

    @property
    def bubble(self) -> float:
        """Idle share of all ranks' time: 1 - busy / (ranks × makespan)."""
        total = self.num_ranks * self.makespan
        return 1.0 - sum(self.busy(r) for r in range(self.num_ranks)) / total if total else 0.0

    def __str__(self) -> str:
        return (
            f"Timeline ({self.source}): {self.num_ranks} ranks, {self.makespan * 1e3:.2f} ms, "
            f"bubble {self.bubble:.1%}"
        )
