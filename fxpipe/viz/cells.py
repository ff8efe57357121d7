"""A timeline cut into columns of equal length: what each rank computes in each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fxpipe.ir.action import Compute, Transfer, Update
from fxpipe.ir.timeline import Span, Timeline

Work: TypeAlias = Compute | Update
"""What a rank is busy with."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a rank does in a column.

    Attributes:
        action: None in a bubble.
        nth: which of the rank's stages it is of: 0 for the first.
        goes_on: whether the column before shows the same computation.
    """

    action: Work | None
    nth: int = 0
    goes_on: bool = False


def cells(timeline: Timeline, unit: float) -> list[list[Cell]]:
    """Rank → its cells of `unit` seconds; a cell shows what is computed at its middle."""
    ranks = [timeline.work_spans(rank) for rank in range(timeline.num_ranks)]
    spans = computations(timeline)
    if not spans:
        return [[] for _ in ranks]
    first = min(span.start for span in spans)
    count = math.ceil((max(span.end for span in spans) - first) / unit - 1e-6)
    middles = [first + (at + 0.5) * unit for at in range(count)]
    return [list(_row(rank, middles)) for rank in ranks]


def shortest(timeline: Timeline) -> float:
    """Seconds of the shortest computation that takes any time; 0.0 if there is none."""
    ranks = range(timeline.num_ranks)
    durations = (span.duration for rank in ranks for span in timeline.compute_spans(rank))
    return min((seconds for seconds in durations if seconds > 0), default=0.0)


def computations(timeline: Timeline) -> list[Span]:
    """What all ranks compute, updates included, rank by rank."""
    return [s for rank in range(timeline.num_ranks) for s in timeline.work_spans(rank)]


def has_several(timeline: Timeline) -> bool:
    """Whether any rank computes more than one stage."""
    ranks = range(timeline.num_ranks)
    return any(len(stages_of(timeline.work_spans(rank))) > 1 for rank in ranks)


def stages_of(spans: Sequence[Span]) -> list[int]:
    """The stages of some spans, ascending."""
    return sorted({work_of(span).stage for span in spans})


def work_of(span: Span) -> Work:
    """The action of a span out of `Timeline.work_spans`."""
    assert not isinstance(span.action, Transfer)
    return span.action


def name_of(action: Work, several: bool) -> str:
    """``F3``, or ``2F3`` where a rank has several stages; an update is a ``U``."""
    return str(action) if several else str(action).removeprefix(str(action.stage))


def _row(spans: Sequence[Span], middles: Sequence[float]) -> Iterator[Cell]:
    nth = {stage: at for at, stage in enumerate(stages_of(spans))}
    shown: Span | None = None
    waiting = list(reversed(spans))
    for middle in middles:
        while waiting and waiting[-1].end <= middle:
            waiting.pop()
        span = waiting[-1] if waiting and waiting[-1].start <= middle else None
        if span is None:
            yield Cell(None)
        else:
            yield Cell(work_of(span), nth[work_of(span).stage], span is shown)
            shown = span
