"""`Executables`: rank programs for the batches that were seen, kept for the next ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from fxpipe.compiler import Line
from fxpipe.errors import ExecutionError
from fxpipe.ir.action import Compute, Update
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.timeline import Timeline
from fxpipe.options import Options
from fxpipe.runtime.instructions import Executable
from fxpipe.runtime.recompute import Recompute
from fxpipe.schedules.backward_only import backward_only
from fxpipe.schedules.check import check
from fxpipe.schedules.depend import Result
from fxpipe.schedules.forward_only import forward_only
from fxpipe.schedules.insert import with_updates
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import resolve
from fxpipe.schedules.reruns import with_reruns
from fxpipe.simulator.engine import simulate

if TYPE_CHECKING:
    from fxpipe.situation import Situation

Part: TypeAlias = Literal["step", "update", "forward", "backward"]

_MOST: Final = 64


class Executables:
    """Rank programs, per part of a step and the recordings that its micro-batches run through.

    Args:
        options: of the pipeline.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._made: OrderedDict[tuple[Part, tuple[Situation, ...]], Executable] = OrderedDict()

    def get(self, part: Part, variants: Sequence[Situation]) -> Executable:
        """The programs for these micro-batches, ready to run.

        Args:
            part: a whole step under the chosen schedule, without or with the optimiser's, or one half of
                a differentiable call.
            variants: per micro-batch, the recording that it runs through.

        Raises:
            ScheduleError: if there is no schedule for so many micro-batches, it is not legal, or a step
                that is to learn has no backwards in it.
        """
        key = (part, tuple(variants))
        if key not in self._made:
            if len(self._made) >= _MOST:
                self._made.popitem(last=False)
            self._made[key] = self._prepare(part, variants)
        self._made.move_to_end(key)
        return self._made[key]

    def clear(self) -> None:
        """Forget all."""
        self._made.clear()

    def _prepare(self, part: Part, variants: Sequence[Situation]) -> Executable:
        line = variants[0].line
        graphs = [variant.line.stage_graph for variant in variants]
        schedule = self._schedule(part, line, len(variants))
        programs = lower(schedule, graphs, _where(schedule, line))
        runtimes = [variant.runtime for variant in variants]
        return runtimes[0].prepare(programs, runtimes)

    def _schedule(self, part: Part, line: Line, micro_batches: int) -> Schedule:
        if part in ("step", "update"):
            schedule = step_schedule(self._options, line, micro_batches)
            updates = any(isinstance(cell, Update) for cells in schedule.ranks for cell in cells)
            return with_updates(schedule) if part == "update" and not updates else schedule
        stages, ranks = line.plan.num_stages, len(self._options.devices)
        if part == "forward":
            return _placed(forward_only(stages, ranks, micro_batches), line.placement)
        schedule = _placed(backward_only(stages, ranks, micro_batches), line.placement)
        check(schedule, line.stage_graph, given={Result.OUTPUT})
        return schedule


def step_schedule(options: Options, line: Line, micro_batches: int) -> Schedule:
    """The chosen schedule for so many micro-batches, checked against the stage graph.

    Raises:
        ScheduleError: if there is none, or it is not legal.
    """
    schedule = resolve(options.schedule, line.plan.num_stages, len(options.devices), micro_batches)
    check(schedule, line.stage_graph)
    return schedule


def predict_step(options: Options, line: Line, micro_batches: int) -> Timeline:
    """The timeline of a step by the costs of the stages.

    Raises:
        ScheduleError: if there is no such schedule.
        ExecutionError: if the costs are not known.
    """
    if line.costs is None:
        raise ExecutionError("the costs of this pipeline are not known: nothing can be predicted")
    schedule = step_schedule(options, line, micro_batches)
    recompute = Recompute(options.recompute)
    programs = with_reruns(
        lower(schedule, line.stage_graph, _where(schedule, line)),
        lambda micro_batch: recompute.reruns(micro_batch, micro_batches),
    )
    cluster = Cluster.local([device.type for device in options.devices])
    return simulate(programs, line.stage_costs(), cluster, line.stage_graph)


def _where(schedule: Schedule, line: Line) -> Placement | None:
    """Where a schedule's stages have to be: with replicas, copies may be anywhere."""
    return Placement(line.placement.ranks) if schedule.replicas == 1 else None


def _placed(schedule: Schedule, placement: Placement) -> Schedule:
    """The same actions on the ranks of a placement: a rank's stages one micro-batch after another."""
    if schedule.placement == placement:
        return schedule
    actions: list[list[Compute]] = [[] for _ in range(placement.num_ranks)]
    ordered = [action for rank in schedule.computes for action in rank]
    descending = schedule.has_backward
    ordered.sort(key=lambda a: (a.micro_batch, -a.stage if descending else a.stage))
    for action in ordered:
        actions[placement.rank_of(action.stage)].append(action)
    return Schedule(tuple(map(tuple, actions)), schedule.name)
