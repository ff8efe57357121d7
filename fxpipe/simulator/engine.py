"""`simulate`: the rank programs on a clock, with the costs of stages and links."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fxpipe.errors import DeadlockError, ScheduleError
from fxpipe.ir.action import Action, Kind, Transfer
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost, with_reads
from fxpipe.ir.program import RankProgram
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.simulator.apart import Apart
from fxpipe.simulator.memory import peak_bytes
from fxpipe.simulator.together import Together
from fxpipe.simulator.wires import Wires


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of circles: none are made here, and looking for them doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_uncollected()
def simulate(
    programs: Sequence[RankProgram],
    costs: Sequence[StageCost],
    cluster: Cluster | None = None,
    graph: StageGraph | None = None,
) -> Timeline:
    """The timeline that `programs` would have.

    A rank computes one action at a time, at a speed that depends on how many ranks compute. A send
    takes no time of its rank; it has its link (one per ordered pair of ranks, first in, first out)
    to itself for bytes / bandwidth, and arrives `Cluster.latency` later. A receive holds its rank up
    until the value is there.

    O(actions) where ranks do not slow each other down, else O(actions × log ranks).

    The timeline's transfer spans are, for a send, from when the link takes it to its arrival; for a
    receive, the time its rank waited. Those without duration are left out.

    Args:
        programs: one per rank, in order.
        costs: per stage, for one micro-batch.
        cluster: speeds and links; if None, full speed and free links.
        graph: gives values their bytes; without it a transfer takes the latency alone, and a
            recomputation starts from nothing where `costs` do not say from how much (`input_bytes`).

    Raises:
        ScheduleError: if there are costs of fewer or more stages than the programs have, or more
            programs than the cluster has ranks.
        DeadlockError: if a receive waits for a send that never happens.
    """
    cluster = cluster or Cluster(len(programs))
    if len(programs) > cluster.ranks:
        raise ScheduleError(f"{len(programs)} rank programs for {cluster.ranks} ranks")
    _require_costs(programs, costs)
    costs = with_reads(costs, graph)
    spans = _spans([program.actions for program in programs], costs, cluster, graph)
    return Timeline(spans, "simulate", peak_bytes(programs, costs))


def _require_costs(programs: Sequence[RankProgram], costs: Sequence[StageCost]) -> None:
    stages = {a.stage for p in programs for a in p.actions if not isinstance(a, Transfer)}
    if stages and max(stages) >= len(costs):
        raise ScheduleError(f"no cost for stage {max(stages)}: costs of {len(costs)} stages given")
    if stages and len(costs) > max(stages) + 1:
        raise ScheduleError(f"costs of {len(costs)} stages for programs of {max(stages) + 1}")


def _spans(
    programs: Sequence[Sequence[Action]],
    costs: Sequence[StageCost],
    cluster: Cluster,
    graph: StageGraph | None,
) -> tuple[Span, ...]:
    """All spans, by rank and start."""
    wires = Wires(programs, cluster, graph)
    work = [{kind: cost.seconds(kind) for kind in Kind} for cost in costs]
    updates = [cost.update for cost in costs]
    engine: Apart | Together
    if set(cluster.speeds) == {1.0}:
        engine = Apart(programs, work, updates, wires)
    else:
        engine = Together(programs, work, updates, wires, cluster)
    engine.run()
    _require_finished(programs, engine.positions)
    for spans in engine.spans:
        spans.sort(key=lambda span: (span.start, span.end))
    return tuple(span for spans in engine.spans for span in spans)


def _require_finished(programs: Sequence[Sequence[Action]], positions: Sequence[int]) -> None:
    stuck = [
        f"rank {rank} waits for {actions[position]} at position {position}"
        for rank, (actions, position) in enumerate(zip(programs, positions, strict=True))
        if position < len(actions)
    ]
    if stuck:
        raise DeadlockError("\n".join(["the ranks wait for one another:", *stuck]))
