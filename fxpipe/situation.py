"""`Situation`: one recorded way of calling a model, made ready to run under the chosen schedule.

A model may decide on its data (``if mask.all():``). A recording then holds for the micro-batches that
decide alike; for others the model is recorded again, as a sibling of the first situation with the
same placement. The micro-batches of one step may run through different siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from torch import Tensor, nn

from fxpipe.capture.guards import Ahead, GuardCheck
from fxpipe.capture.signature import flatten
from fxpipe.codegen.load import load
from fxpipe.compiler import Line
from fxpipe.drop_in import differentiable_call
from fxpipe.errors import CaptureError, ExecutionError
from fxpipe.ir.action import Compute
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.timeline import Timeline
from fxpipe.joined import JoinedOutputs, input_gradient, pass_on
from fxpipe.options import Options
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.instructions import Executable
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.micro_batch import MicroBatches, scatter
from fxpipe.runtime.runtime import Call, Outcome, Runtime
from fxpipe.schedules.backward_only import backward_only
from fxpipe.schedules.check import check
from fxpipe.schedules.depend import Result
from fxpipe.schedules.forward_only import forward_only
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import resolve
from fxpipe.simulator.engine import simulate

Record: TypeAlias = "Callable[[tuple[Any, ...], dict[str, Any]], Situation]"
"""Records the model anew for one micro-batch."""

_MAX_SIBLINGS: Final = 16
_MAX_EXECUTABLES: Final = 64


@dataclass(frozen=True)
class Seed:
    """What decides the random numbers of a step: a base and the step's number."""

    base: int
    step: int


class Situation:
    """A line of the compiler with its runtime.

    Attributes:
        line: what the compiler made.
        siblings: recordings of the same call that decide otherwise on its data; this one is the first.
    """

    def __init__(
        self,
        model: nn.Module,
        line: Line,
        lanes: Sequence[Lane],
        backend: Backend,
        options: Options,
        record: Record,
    ) -> None:
        self.line = line
        self.siblings = [self]
        self._options = options
        self._record = record
        self._guards = GuardCheck(line.capture, model)
        self._decides = any("ops.check_value(" in program.source for program in line.stages)
        self._executables: dict[tuple[Any, ...], Executable] = {}
        self._runtime = Runtime(
            model,
            line.capture,
            line.stages,
            line.stage_graph,
            line.placement,
            lanes,
            backend,
            load,
            recompute=options.recompute,
            batch_norm=options.batch_norm,
        )

    @property
    def draws(self) -> bool:
        """Whether the model draws random numbers."""
        return any(program.random or program.needs_keys for program in self.line.stages)

    def schedule(self, micro_batches: int) -> Schedule:
        """The chosen schedule for so many micro-batches, checked.

        Raises:
            ScheduleError: if there is none, or it is not legal.
        """
        return step_schedule(self._options, self.line, micro_batches)

    # ---- running ---------------------------------------------------------------------------------

    def scatter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> MicroBatches:
        """The call's inputs, cut into micro-batches."""
        return scatter(
            self.line.capture.signature, self._tensors(args, kwargs), self._options.chunks
        )

    def step(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        seed: Seed,
        *,
        target: Any,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        keep_output: bool,
    ) -> tuple[Outcome, Any]:
        """Forward and backward of a batch under the schedule: the outcome, and the joined output."""
        batches = self.scatter(args, kwargs)
        outcome = self._runtime.run_step(
            self._executable("step", self._variants(batches, args, kwargs)),
            batches,
            seed=seed.base,
            step=seed.step,
            target=target,
            loss_fn=loss_fn,
            keep_output=keep_output,
        )
        signature = self.line.capture.signature
        pass_on(signature, self._tensors(args, kwargs), batches, outcome.input_grads)
        output = self._join(outcome.outputs, batches).result() if keep_output else None
        return outcome, output

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: Seed) -> Any:
        """All forwards; nothing is kept for a backward."""
        batches = self.scatter(args, kwargs)
        variants = self._variants(batches, args, kwargs)
        call = self._forward(batches, variants, seed, keeps_graph=False)
        return self._join(call.take_outputs(), batches).result()

    def differentiable(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        seed: Seed,
        parameters: Sequence[Tensor],
    ) -> Any:
        """All forwards; the result's backward runs all backwards."""
        tensors = self._tensors(args, kwargs)
        batches = self.scatter(args, kwargs)
        variants = self._variants(batches, args, kwargs)
        wanted = [at for at, tensor in enumerate(tensors) if tensor.requires_grad]
        joined: list[JoinedOutputs] = []

        def run() -> tuple[_Half, list[Tensor]]:
            call = self._forward(batches, variants, seed, keeps_graph=True)
            outputs = self._join(call.take_outputs(), batches)
            joined.append(outputs)
            half = _Half(self, call, outputs, batches, variants, wanted)
            return half, outputs.differentiable()

        made = differentiable_call(run, [tensors[at] for at in wanted], parameters)
        return joined[0].result(made)

    def _forward(
        self,
        batches: MicroBatches,
        variants: Sequence[Situation],
        seed: Seed,
        *,
        keeps_graph: bool,
    ) -> Call:
        return self._runtime.forward(
            self._executable("forward", variants),
            batches,
            seed=seed.base,
            step=seed.step,
            keeps_graph=keeps_graph,
        )

    def _join(self, outputs: Sequence[Sequence[Any]], batches: MicroBatches) -> JoinedOutputs:
        return JoinedOutputs(self.line.capture.signature, outputs, batches)

    def _tensors(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        leaves, _ = flatten((args, dict(kwargs)))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    # ---- decisions on data -----------------------------------------------------------------------

    def _variants(
        self, batches: MicroBatches, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Sequence[Situation]:
        """For each micro-batch the sibling whose decisions come out as the micro-batch's.

        Raises:
            CaptureError: if there are too many.
        """
        if not self._decides:
            return [self] * batches.count
        leaves, layout = flatten((args, dict(kwargs)))
        ahead = Ahead()
        chosen = []
        for inputs in batches.inputs:
            given = iter(inputs)
            pieces = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            some_args, some_kwargs = layout.unflatten(pieces)
            chosen.append(self._sibling(some_args, some_kwargs, ahead))
        return chosen

    def _sibling(self, args: tuple[Any, ...], kwargs: dict[str, Any], ahead: Ahead) -> Situation:
        """The sibling of one micro-batch; `ahead` has the buffers as those before it leave them."""
        for known in self.siblings:
            if known._guards.failed(args, kwargs, ahead) is None:
                return known
        if len(self.siblings) == _MAX_SIBLINGS:
            guard = self._guards.failed(args, kwargs, ahead)
            where = guard.meta["source"] if guard is not None else "its forward"
            raise CaptureError(
                f"the model decides on its data in more than {_MAX_SIBLINGS} ways ({where}): each "
                "way is a recording of its own. Take the decision out of the model's forward, or "
                "put it in a module that no cut divides (cuts=...)"
            )
        with ahead.in_model(self._guards.model):
            new = self._record(args, kwargs)
        new._guards.failed(args, kwargs, ahead)
        if new.line.capture.signature.output != self.line.capture.signature.output:
            raise CaptureError(
                "the structure of the model's result depends on its data: micro-batches of one "
                "batch cannot be joined"
            )
        self.siblings.append(new)
        return new

    # ---- rank programs, kept per micro-batches' variants -------------------------------------------

    def _executable(self, kind: str, variants: Sequence[Situation]) -> Executable:
        key = (kind, *map(id, variants))
        if key not in self._executables:
            if len(self._executables) >= _MAX_EXECUTABLES:
                del self._executables[next(iter(self._executables))]
            graphs = [variant.line.stage_graph for variant in variants]
            programs = lower(self._schedule_of(kind, len(variants)), graphs, self.line.placement)
            runtimes = [variant._runtime for variant in variants]
            self._executables[key] = self._runtime.prepare(programs, runtimes)
        return self._executables[key]

    def _schedule_of(self, kind: str, micro_batches: int) -> Schedule:
        if kind == "step":
            return self.schedule(micro_batches)
        stages, ranks = self.line.plan.num_stages, len(self._options.devices)
        if kind == "forward":
            return _placed(forward_only(stages, ranks, micro_batches), self.line.placement)
        schedule = _placed(backward_only(stages, ranks, micro_batches), self.line.placement)
        check(schedule, self.line.stage_graph, given={Result.OUTPUT})
        return schedule


class _Half:
    """A call's backward half: from the gradients of the joined outputs to those of the inputs."""

    def __init__(
        self,
        situation: Situation,
        call: Call,
        outputs: JoinedOutputs,
        batches: MicroBatches,
        variants: Sequence[Situation],
        wanted: Sequence[int],
    ) -> None:
        self._situation = situation
        self._call = call
        self._outputs = outputs.without_values()
        self._batches = batches
        self._variants = variants
        self._wanted = wanted

    def backward(
        self, grads: Sequence[Tensor | None], *, inputs_only: bool
    ) -> Sequence[Tensor | None]:
        """Run all backwards; the gradients of the inputs that require grad."""
        found = self._call.backward(
            self._situation._executable("backward", self._variants),
            self._outputs.gradients(grads),
            inputs_only=inputs_only,
        )
        signature = self._situation.line.capture.signature
        return [input_gradient(signature, at, self._batches, found) for at in self._wanted]


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
    programs = lower(step_schedule(options, line, micro_batches), line.stage_graph, line.placement)
    cluster = Cluster.local([device.type for device in options.devices])
    return simulate(programs, line.stage_costs(), cluster, line.stage_graph)


def _placed(schedule: Schedule, placement: Placement) -> Schedule:
    """The same actions on the ranks of a placement: a rank's stages one micro-batch after another."""
    if schedule.placement == placement:
        return schedule
    actions: list[list[Compute]] = [[] for _ in range(placement.num_ranks)]
    ordered = [action for rank in schedule.ranks for action in rank]
    descending = schedule.has_backward
    ordered.sort(key=lambda a: (a.micro_batch, -a.stage if descending else a.stage))
    for action in ordered:
        actions[placement.rank_of(action.stage)].append(action)
    return Schedule(tuple(map(tuple, actions)), schedule.name)
