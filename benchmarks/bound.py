"""How fast a step could be: the simulator fed with stage times as measured one at a time."""

from __future__ import annotations

import statistics
from collections import defaultdict

from torch import Tensor, nn

import fxpipe
from benchmarks.contenders import Recompute, fxpipe_step, pipeline


def simulated_bound(
    pipe: fxpipe.Pipeline,
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    *,
    chunks: int,
    recompute: Recompute,
    speed: float,
    rounds: int,
) -> float:
    """Seconds of a step without any cost of the runtime.

    The stages of `pipe` run one action at a time in one thread (the inline backend), which gives each
    stage's time; the simulator lets them overlap under the same schedule, each rank at `speed` while
    the other computes too.
    """
    alone = pipeline(model, x, chunks=chunks, recompute=recompute, backend="inline", plan=pipe.plan)
    step = fxpipe_step(alone, x, target)
    step()
    costs = measured_costs([step().timeline for _ in range(rounds)], pipe.plan.num_stages)
    alone.close()
    programs = fxpipe.lower(pipe.schedule, pipe.stage_graph)
    cluster = fxpipe.Cluster(ranks=len(programs), speeds=(1.0, speed))
    return fxpipe.simulate(programs, costs, cluster).makespan


def measured_costs(timelines: list[fxpipe.Timeline], stages: int) -> list[fxpipe.StageCost]:
    """Median seconds of each stage's forward and backward over all micro-batches and steps."""
    seconds: dict[tuple[int, fxpipe.Kind], list[float]] = defaultdict(list)
    for timeline in timelines:
        for rank in range(timeline.num_ranks):
            for span in timeline.compute_spans(rank):
                assert isinstance(span.action, fxpipe.Compute)
                seconds[span.action.stage, span.action.kind].append(span.duration)
    return [
        fxpipe.StageCost(
            forward=statistics.median(seconds[stage, fxpipe.Kind.FORWARD]),
            backward=statistics.median(seconds[stage, fxpipe.Kind.BACKWARD]),
        )
        for stage in range(stages)
    ]
