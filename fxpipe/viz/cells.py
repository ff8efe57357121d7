"""A timeline cut into columns of equal length: what each rank computes in each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fxpipe.ir.action import Compute
from fxpipe.ir.timeline import Span, Timeline


@dataclass(frozen=True, slots=True)
class Cell:
    """What a rank does in a column.

    Attributes:
        action: None in a bubble.
        nth: which of the rank's stages it is of: 0 for the first.
        goes_on: whether the column before shows the same computation.
    """

    action: Compute | None
    nth: int = 0
    goes_on: bool = False


def cells(timeline: Timeline, unit: float) -> list[list[Cell]]:
    """Rank → its cells of `unit` seconds; a cell shows what is computed at its middle."""
    ranks = [timeline.compute_spans(rank) for rank in range(timeline.num_ranks)]
    spans = computations(timeline)
    if not spans:
        return [[] for _ in ranks]
    first = min(span.start for span in spans)
    count = math.ceil((max(span.end for span in spans) - first) / unit - 1e-6)
    middles = [first + (at + 0.5) * unit for at in range(count)]
    return [list(_row(rank, middles)) for rank in ranks]


def shortest(timeline: Timeline) -> float:
    """Seconds of the shortest computation that takes any time; 0.0 if there is none."""
    durations = (span.duration for span in computations(timeline))
    return min((seconds for seconds in durations if seconds > 0), default=0.0)


def computations(timeline: Timeline) -> list[Span]:
    """What all ranks compute, rank by rank."""
    return [s for rank in range(timeline.num_ranks) for s in timeline.compute_spans(rank)]


def has_several(timeline: Timeline) -> bool:
    """Whether any rank computes more than one stage."""
    ranks = range(timeline.num_ranks)
    return any(len(stages_of(timeline.compute_spans(rank))) > 1 for rank in ranks)


def stages_of(spans: Sequence[Span]) -> list[int]:
    """The stages of some spans, ascending."""
    return sorted({span.action.stage for span in spans if isinstance(span.action, Compute)})


def name_of(action: Compute, several: bool) -> str:
    """``F3``, or ``2F3`` where a rank has several stages."""
    return str(action) if several else f"{action.kind}{action.micro_batch}"


def _row(spans: Sequence[Span], middles: Sequence[float]) -> Iterator[Cell]:
    nth = {stage: at for at, stage in enumerate(stages_of(spans))}
    shown: Span | None = None
    waiting = list(reversed(spans))
    for middle in middles:
        while waiting and waiting[-1].end <= middle:
            waiting.pop()
        span = waiting[-1] if waiting and waiting[-1].start <= middle else None
        if span is None or not isinstance(span.action, Compute):
            yield Cell(None)
        else:
            yield Cell(span.action, nth[span.action.stage], span is shown)
            shown = span
