"""What tests of generators share: a timeline of F = I = W, and peaks in activations of a whole rank."""

from __future__ import annotations

from fxpipe.ir.cost import StageCost
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.memory import kept
from fxpipe.simulator.unit import unit_timeline
from fxpipe.viz.text import grid


def thirds(schedule: Schedule) -> Timeline:
    """Every stage's forward, input half and weight half take one second each."""
    return unit_timeline(schedule, backward=2.0)


def picture(schedule: Schedule) -> str:
    """The grid of `thirds`, for a golden file."""
    return grid(thirds(schedule)) + "\n"


def peaks(schedule: Schedule) -> tuple[float, ...]:
    """Per rank, the activations it keeps at most; those of all its stages together are one."""
    per_rank = schedule.num_stages * schedule.replicas / schedule.num_ranks
    costs = [StageCost(1, 2, 1, saved_bytes=1)] * schedule.num_stages
    return tuple(max(kept(actions, costs)) / per_rank for actions in schedule.computes)
