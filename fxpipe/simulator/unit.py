"""The timeline of a schedule without a model: every stage costs the same, links are free."""

from __future__ import annotations

from collections.abc import Collection

from fxpipe.ir.cost import StageCost
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.check import check
from fxpipe.schedules.depend import Result
from fxpipe.schedules.linear import chain_of
from fxpipe.schedules.lower import lower
from fxpipe.simulator.engine import simulate


def unit_timeline(
    schedule: Schedule,
    graph: StageGraph | None = None,
    *,
    backward: float = 1.0,
    given: Collection[Result] = (),
) -> Timeline:
    """The schedule's timeline where a forward takes 1 s, a backward `backward` s, and stages keep 1 B.

    The peak bytes of a rank are thus the micro-batches it keeps.

    Args:
        schedule: checked before it is run.
        graph: the stages; a chain of neighbours if None.
        backward: seconds of a full backward; half of it makes weight gradients.
        given: results that exist before the schedule starts.

    Raises:
        ScheduleError: if the schedule is not legal.
    """
    graph = graph or chain_of(schedule)
    check(schedule, graph, given=given)
    cost = StageCost(1.0, backward, weight=backward / 2, saved_bytes=1)
    return simulate(lower(schedule, graph), [cost] * graph.num_stages)
