"""How fast a step could be: the simulator fed with stage times as measured one at a time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

import fxpipe


def simulated_bound(pipe: fxpipe.Pipeline, alone: Sequence[fxpipe.Timeline], speed: float) -> float:
    """Seconds of a step of `pipe` without any cost of the runtime.

    Args:
        pipe: gives the schedule and the stages.
        alone: timelines of the same stages run one action at a time in one thread (the inline
            backend), which give each stage's time.
        speed: of each rank while the other computes too, relative to a rank alone.
    """
    programs = fxpipe.lower(pipe.schedule, pipe.stage_graph)
    cluster = fxpipe.Cluster(ranks=len(programs), speeds=(1.0, speed))
    costs = measured_costs(alone, pipe.plan.num_stages)
    return fxpipe.simulate(programs, costs, cluster).makespan


def measured_costs(timelines: Sequence[fxpipe.Timeline], stages: int) -> list[fxpipe.StageCost]:
    """Median seconds of what each stage computes, over all micro-batches and steps.

    Where backwards are split, a full one is taken to last as long as its halves.
    """
    seconds: dict[tuple[int, fxpipe.Kind], list[float]] = defaultdict(list)
    for timeline in timelines:
        for rank in range(timeline.num_ranks):
            for span in timeline.compute_spans(rank):
                assert isinstance(span.action, fxpipe.Compute)
                seconds[span.action.stage, span.action.kind].append(span.duration)

    def median(stage: int, kind: fxpipe.Kind) -> float:
        return statistics.median(seconds.get((stage, kind), [0.0]))

    costs = []
    for stage in range(stages):
        weight = median(stage, fxpipe.Kind.BACKWARD_WEIGHT)
        halves = median(stage, fxpipe.Kind.BACKWARD_INPUT) + weight
        costs.append(
            fxpipe.StageCost(
                forward=median(stage, fxpipe.Kind.FORWARD),
                backward=halves or median(stage, fxpipe.Kind.BACKWARD),
                weight=weight,
            )
        )
    return costs
