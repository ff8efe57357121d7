"""`Situation`: one recorded way of calling a model, made ready to run under the chosen schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fxpipe.capture.signature import flatten
from fxpipe.codegen.load import load
from fxpipe.compiler import Line
from fxpipe.drop_in import differentiable_call
from fxpipe.errors import ExecutionError
from fxpipe.ir.action import Compute
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.signature import InputLeaf
from fxpipe.ir.timeline import Timeline
from fxpipe.joined import JoinedOutputs
from fxpipe.options import Options
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.instructions import Executable
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.micro_batch import MicroBatches, gather_input_gradient, scatter
from fxpipe.runtime.runtime import Call, Outcome, Runtime
from fxpipe.schedules.backward_only import backward_only
from fxpipe.schedules.check import check
from fxpipe.schedules.depend import Result
from fxpipe.schedules.forward_only import forward_only
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import resolve
from fxpipe.simulator.engine import simulate


@dataclass(frozen=True)
class Seed:
    """What decides the random numbers of a step: a base and the step's number."""

    base: int
    step: int


class Situation:
    """A line of the compiler with its runtime.

    Attributes:
        line: what the compiler made.
    """

    def __init__(
        self,
        model: nn.Module,
        line: Line,
        lanes: Sequence[Lane],
        backend: Backend,
        options: Options,
    ) -> None:
        self.line = line
        self._options = options
        self._executables: dict[tuple[str, int], Executable] = {}
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
            self._executable("step", batches.count),
            batches,
            seed=seed.base,
            step=seed.step,
            target=target,
            loss_fn=loss_fn,
            keep_output=keep_output,
        )
        self._pass_on(self._tensors(args, kwargs), batches, outcome.input_grads)
        output = self._join(outcome.outputs, batches).result() if keep_output else None
        return outcome, output

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: Seed) -> Any:
        """All forwards; nothing is kept for a backward."""
        batches = self.scatter(args, kwargs)
        call = self._forward(batches, seed, keeps_graph=False)
        return self._join(call.outputs, batches).result()

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
        wanted = [at for at, tensor in enumerate(tensors) if tensor.requires_grad]
        joined: list[JoinedOutputs] = []

        def run() -> tuple[_Half, list[Tensor]]:
            call = self._forward(batches, seed, keeps_graph=True)
            outputs = self._join(call.outputs, batches)
            joined.append(outputs)
            return _Half(self, call, outputs, batches, wanted), outputs.differentiable()

        made = differentiable_call(run, [tensors[at] for at in wanted], parameters)
        return joined[0].result(made)

    def _forward(self, batches: MicroBatches, seed: Seed, *, keeps_graph: bool) -> Call:
        return self._runtime.forward(
            self._executable("forward", batches.count),
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

    def _pass_on(
        self, tensors: Sequence[Tensor], batches: MicroBatches, grads: Sequence[Sequence[Any]]
    ) -> None:
        """Run the inputs' gradients back into whatever graph the caller made them with."""
        for at, tensor in enumerate(tensors):
            if tensor.requires_grad:
                grad = self._input_grad(at, batches, grads)
                if grad is not None:
                    tensor.backward(grad)

    def _input_grad(
        self, at: int, batches: MicroBatches, grads: Sequence[Sequence[Any]]
    ) -> Tensor | None:
        leaf: InputLeaf = self.line.capture.signature.placeholders[at]
        return gather_input_gradient(
            leaf, [given[at] for given in grads], [inputs[at] for inputs in batches.inputs]
        )

    # ---- rank programs, kept per number of micro-batches ------------------------------------------

    def _executable(self, kind: str, micro_batches: int) -> Executable:
        key = (kind, micro_batches)
        if key not in self._executables:
            schedule = self._schedule_of(kind, micro_batches)
            programs = lower(schedule, self.line.stage_graph, self.line.placement)
            self._executables[key] = self._runtime.prepare(programs)
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
        wanted: Sequence[int],
    ) -> None:
        self._situation = situation
        self._call = call
        self._outputs = outputs.without_values()
        self._batches = batches
        self._wanted = wanted

    def backward(
        self, grads: Sequence[Tensor | None], *, inputs_only: bool
    ) -> Sequence[Tensor | None]:
        """Run all backwards; the gradients of the inputs that require grad."""
        found = self._call.backward(
            self._situation._executable("backward", self._batches.count),
            self._outputs.gradients(grads),
            inputs_only=inputs_only,
        )
        return [self._situation._input_grad(at, self._batches, found) for at in self._wanted]


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
    return simulate(programs, line.stage_costs(), graph=line.stage_graph)


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
