"""The straight line up to the stage graph, and the step it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fxpipe
from fxpipe.cli.arguments import CostsName, ModeName
from fxpipe.cli.example import Example
from fxpipe.cli.inputs import read_dynamic
from fxpipe.ir.capture import Capture
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import CostProfile, StageCost
from fxpipe.ir.plan import PartitionPlan, Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.serial import from_json
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.check import check
from fxpipe.schedules.registry import Generator, resolve
from fxpipe.schedules.traffic import traffic
from fxpipe.viz.text import plan_table
from fxpipe.viz.units import bytes_text


@dataclass(frozen=True)
class Line:
    """A model's capture, costs, plan and stage graph, for one micro-batch."""

    capture: Capture
    costs: CostProfile
    plan: PartitionPlan
    graph: StageGraph

    def stage_costs(self) -> list[StageCost]:
        """Cost of every stage for one micro-batch."""
        return list(self.costs.of_stages(self.plan, self.graph))

    def table(self, placement: Placement) -> str:
        """What every stage weighs, takes and hands on, and what goes from rank to rank."""
        table = plan_table(self.graph, self.stage_costs(), placement, self.plan.starts)
        return f"{table}\n\n{traffic(self.graph, placement).described(bytes_text)}"


def make_line(
    example: Example,
    *,
    stages: int,
    chunks: int,
    cuts: str = "",
    load: Path | None = None,
    costs: CostsName = "measure",
    mode: ModeName = "auto",
    dynamic: Sequence[str] | None = None,
    may_be: int | None = None,
) -> Line:
    """Trace a micro-batch, cost it, cut it, link it.

    Args:
        example: the model and a batch.
        stages: how many.
        chunks: micro-batches of the batch.
        cuts: where stages start; empty: balanced.
        load: a file with a plan.
        costs: how they are found.
        mode: of the recording.
        dynamic: dimensions that vary.
        may_be: how many stages will do where the model cannot be cut into as many as asked for.

    Raises:
        FxPipeError: if a step refuses.
    """
    args, kwargs = example.micro_batch(chunks)
    capture = record(example, chunks, mode, dynamic=dynamic)
    if costs == "measure":
        priced = fxpipe.profile(capture, example.model, args, kwargs)
    else:
        priced = fxpipe.estimate(capture, example.model)
    if may_be is not None and not cuts and load is None:
        from fxpipe.compiler import partition_for

        plan = partition_for(capture, priced, stages, may_be)
    else:
        plan = _plan(capture, priced, stages, cuts, load)
    return Line(capture, priced, plan, fxpipe.link(capture, plan))


def record(
    example: Example,
    chunks: int,
    mode: ModeName,
    verify: bool = True,
    dynamic: Sequence[str] | None = None,
) -> Capture:
    """The capture of the first of `chunks` micro-batches.

    Raises:
        CaptureError: if the model cannot be recorded.
    """
    args, kwargs = example.micro_batch(chunks)
    marks = read_dynamic(dynamic)
    return fxpipe.trace(example.model, args, kwargs, mode=mode, verify=verify, dynamic=marks)


def _plan(
    capture: Capture, costs: CostProfile, stages: int, cuts: str, load: Path | None
) -> PartitionPlan:
    if load is None:
        return fxpipe.partition(capture, costs, stages, cuts=split_names(cuts))
    from fxpipe.partitioners.check import check_plan

    plan = from_json(load.read_text(encoding="utf-8"), PartitionPlan)
    check_plan(capture, plan)
    return plan


def split_names(cuts: str) -> list[str] | None:
    """``"a, b"`` → the two names; None for none."""
    names = [name.strip() for name in cuts.split(",") if name.strip()]
    return names or None


def predict(
    graph: StageGraph,
    costs: Sequence[StageCost],
    schedule: str | Generator | Schedule,
    cluster: Cluster,
    micro_batches: int,
) -> Timeline:
    """The timeline of a step.

    Raises:
        ScheduleError: if the schedule does not fit or is not legal.
    """
    resolved = resolve(schedule, graph.num_stages, cluster.ranks, micro_batches)
    check(resolved, graph)
    return fxpipe.simulate(fxpipe.lower(resolved, graph), costs, cluster, graph)
