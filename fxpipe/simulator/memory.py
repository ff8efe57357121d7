"""Bytes kept for backward: the peak per rank, and the course over a timeline."""

from __future__ import annotations

from collections.abc import Sequence

from fxpipe.ir.action import Compute
from fxpipe.ir.cost import StageCost
from fxpipe.ir.program import RankProgram
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.memory import changes, kept


def peak_bytes(programs: Sequence[RankProgram], costs: Sequence[StageCost]) -> tuple[int, ...]:
    """The largest sum of bytes kept between forward and backward, per rank.

    What is kept from when to when, `fxpipe.schedules.memory.changes` says.
    """
    return tuple(_peak(program, costs) for program in programs)


def _peak(program: RankProgram, costs: Sequence[StageCost]) -> int:
    actions = [action for action in program.actions if isinstance(action, Compute)]
    return max(kept(actions, costs), default=0)


def kept_over_time(
    timeline: Timeline, costs: Sequence[StageCost]
) -> tuple[tuple[tuple[float, int], ...], ...]:
    """Per rank, the moments (in seconds) at which the bytes kept for backward change, and to what."""
    courses = []
    for rank in range(timeline.num_ranks):
        spans = timeline.compute_spans(rank)
        actions = [span.action for span in spans if isinstance(span.action, Compute)]
        now, found = changes(actions, costs)
        course = [(0.0, now)]
        for span, (more, less) in zip(spans, found, strict=True):
            for moment, change in ((span.start, more), (span.end, -less)):
                now += change
                if change and course[-1][0] == moment:
                    course[-1] = (moment, now)
                elif change:
                    course.append((moment, now))
        courses.append(tuple(course))
    return tuple(courses)
