"""Rank programs made ready to run: each action as one callable that takes the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Action, Compute, Direction, Kind, Payload, Transfer, Update
from fxpipe.ir.program import RankProgram
from fxpipe.ir.stage import HOST
from fxpipe.runtime.backend import Route
from fxpipe.runtime.stage import StageRunner
from fxpipe.runtime.values import map_tensors, tensors_in
from fxpipe.runtime.weights import NO_LEAVES, Changes, Leaves, shared_changes

if TYPE_CHECKING:
    from fxpipe.runtime.step import Step

Run: TypeAlias = "Callable[[Step], None]"

COMPUTES: Final[Mapping[Kind, Callable[[StageRunner, int, Step], None]]] = {
    Kind.FORWARD: StageRunner.forward,
    Kind.BACKWARD: StageRunner.backward,
    Kind.BACKWARD_INPUT: StageRunner.backward_input,
    Kind.BACKWARD_WEIGHT: StageRunner.backward_weight,
    Kind.RECOMPUTE: StageRunner.recompute,
}
"""What a stage can be told to compute."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An action and what it does.

    Attributes:
        action: as the program says it.
        run: does it.
        micro_batch: of the action.
        receives: index of the route that must have a value first; None if it waits for nothing.
        label: marks the action for `torch.profiler`; None for transfers.
    """

    action: Action
    run: Run
    micro_batch: int
    receives: int | None = None
    label: Any = None


@dataclass
class Pace:
    """How long the actions of an executable take.

    Attributes:
        brief: whether they were so short, the last time, that threads only get in each other's way.
    """

    brief: bool = False


@dataclass(frozen=True)
class Executable:
    """The programs of all ranks, ready to run.

    Attributes:
        ranks: instructions of each rank.
        routes: the ways between ranks.
        micro_batches: how many there are.
        has_backward: whether any gradient is computed.
        runners: per micro-batch, its stages.
        distinct: each of these once, by stage.
        changes: for each of `distinct`, the buffers that it changes, with the other variants of its
            stage that run in turn with it.
        pace: what was learnt from running it.
    """

    ranks: tuple[tuple[Instruction, ...], ...]
    routes: tuple[Route, ...]
    micro_batches: int
    has_backward: bool
    runners: tuple[tuple[StageRunner, ...], ...]
    distinct: tuple[StageRunner, ...]
    changes: tuple[Changes, ...]
    pace: Pace = field(default_factory=Pace, compare=False)

    def bind(self) -> None:
        """Bind the stages to the user's modules as they are now."""
        for runner, changes in zip(self.distinct, self.changes, strict=True):
            runner.weights.use(changes)
            runner.weights.follow()
        for changes in dict.fromkeys(self.changes):
            changes.buffers.begin()

    def release(self, *, keep: bool) -> None:
        """Give the user's modules what forwards have changed; in buffers only if `keep`."""
        for runner in self.distinct:
            runner.weights.write_back()
        for changes in dict.fromkeys(self.changes):
            changes.buffers.end(keep=keep)

    def new_leaves(self, keeps_graph: bool) -> list[Leaves]:
        """Per stage, what it reads in place of parameters that other stages read too."""
        found: list[Leaves] = [NO_LEAVES for _ in self.runners[0]]
        for runner in self.distinct:
            leaves = runner.weights.new_leaves(keeps_graph)
            if leaves:
                found[runner.stage] = {**leaves, **found[runner.stage]}
        return found


def micro_batches_of(programs: Sequence[RankProgram]) -> int:
    """How many micro-batches rank programs are for."""
    computes = (a for p in programs for a in p.actions if isinstance(a, Compute))
    return 1 + max((action.micro_batch for action in computes), default=-1)


def prepare(
    programs: Sequence[RankProgram], runners: Sequence[Sequence[StageRunner]]
) -> Executable:
    """Rank programs ready to run on these stages.

    Args:
        programs: one per rank.
        runners: per micro-batch, its stages: a model that decides on its data has several variants.

    Raises:
        ScheduleError: if an action updates a stage or runs a second copy of one, or there are not
            exactly the stages that the programs speak of.
    """
    computes = [a for p in programs for a in p.actions if isinstance(a, Compute)]
    stages = {action.stage for action in computes}
    count = micro_batches_of(programs)
    if len(runners) != count:
        raise ScheduleError(
            f"the schedule is for {count} micro-batches, the batch is cut into {len(runners)}"
        )
    if stages != set(range(len(runners[0]))):
        raise ScheduleError(
            f"the schedule runs stages {sorted(stages)}, the pipeline has {len(runners[0])}"
        )
    _require_one_copy(programs)
    maker = _Maker(programs, runners)
    distinct = sorted({runner: None for stages in runners for runner in stages}, key=_stage_of)
    return Executable(
        ranks=tuple(tuple(maker.instructions(program)) for program in programs),
        routes=tuple(maker.routes),
        micro_batches=count,
        has_backward=any(action.kind is not Kind.FORWARD for action in computes),
        runners=tuple(map(tuple, runners)),
        distinct=tuple(distinct),
        changes=tuple(_changes(distinct)),
    )


def _require_one_copy(programs: Sequence[RankProgram]) -> None:
    homes: dict[int, int] = {}
    for program in programs:
        for action in program.actions:
            if isinstance(action, Compute):
                home = homes.setdefault(action.stage, program.rank)
                if home != program.rank:
                    raise ScheduleError(
                        f"{action} on rank {program.rank}: stage {action.stage} runs on rank {home}, "
                        "and the stages are not prepared for a second copy"
                    )


def _changes(distinct: Sequence[StageRunner]) -> Iterator[Changes]:
    for _, variants in groupby(distinct, key=_stage_of):
        weights = [runner.weights for runner in variants]
        yield from (shared_changes(weights),) * len(weights)


def _stage_of(runner: StageRunner) -> int:
    return runner.stage


class _Maker:
    def __init__(
        self, programs: Sequence[RankProgram], runners: Sequence[Sequence[StageRunner]]
    ) -> None:
        self._runners = runners
        self._rank_of = {
            action.stage: program.rank
            for program in programs
            for action in program.actions
            if isinstance(action, Compute)
        }
        self.routes: dict[Route, int] = {}

    def instructions(self, program: RankProgram) -> Iterator[Instruction]:
        last_sends = {
            (action.payload, action.value, action.source, action.micro_batch): at
            for at, action in enumerate(program.actions)
            if isinstance(action, Transfer) and action.direction is Direction.SEND
        }
        final = set(last_sends.values())
        sent = set(last_sends)
        for at, action in enumerate(program.actions):
            match action:
                case Compute():
                    yield self._compute(action, sent)
                case Transfer():
                    yield self._transfer(action, at in final)
                case Update():
                    raise ScheduleError(
                        f"{action}: the optimiser's step is not run by the pipeline"
                    )

    def _compute(self, action: Compute, sent: set[tuple[Payload, str, int, int]]) -> Instruction:
        method = COMPUTES[action.kind]
        runner = self._runners[action.micro_batch][action.stage]
        run: Run = partial(method, runner, action.micro_batch)
        moves = tuple(self._moves(action, sent))
        if moves:
            run = partial(_compute_and_move, run, moves)
        if not runner.lane.is_synchronous:
            run = partial(_on_stream, runner.lane, run)
        label = torch._C._profiler._RecordFunctionFast(f"fxpipe {action}")
        return Instruction(action, run, action.micro_batch, None, label)

    def _moves(self, action: Compute, sent: set[tuple[Payload, str, int, int]]) -> Iterator[Run]:
        """What hands values to the stages of the same rank."""
        m, stage = action.micro_batch, action.stage
        runners, home = self._runners[m], self._rank_of[stage]
        runner = runners[stage]
        if action.kind is Kind.FORWARD:
            for slot, edge in enumerate(runner.ports.writes):
                for reader in edge.consumers:
                    if self._rank_of[reader] == home:
                        there = runners[reader].ports.read_slot(edge.value)
                        yield partial(_move_value, stage, slot, reader, there, m)
                if (Payload.ACTIVATION, edge.value, stage, m) not in sent:
                    yield partial(_drop_value, stage, slot, m)
        elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            for slot, edge in enumerate(runner.ports.reads):
                holder = edge.previous_holder(stage)
                if edge.is_differentiable and holder != HOST and self._rank_of[holder] == home:
                    there = runners[holder].ports.later_slot(edge.value)
                    yield partial(_move_gradient, stage, slot, holder, there, m)

    def _transfer(self, action: Transfer, is_last: bool) -> Instruction:
        runners = self._runners[action.micro_batch]
        source, target = runners[action.source], runners[action.target]
        is_value = action.payload is Payload.ACTIVATION
        route = self._route(action)
        crosses = not (source.lane.is_synchronous and target.lane.is_synchronous) or (
            source.lane.device != target.lane.device
        )
        m = action.micro_batch
        if action.direction is Direction.SEND:
            slot = (source.ports.write_slot if is_value else source.ports.read_slot)(action.value)
            send = _send_value if is_value else _send_gradient
            run: Run = partial(
                send, route, action.source, slot, m, is_last, source.lane if crosses else None
            )
            return Instruction(action, run, m)
        slot = (target.ports.read_slot if is_value else target.ports.later_slot)(action.value)
        take = _receive_value if is_value else _receive_gradient
        lanes = (target.lane, source.lane) if crosses else None
        return Instruction(action, partial(take, route, action.target, slot, m, lanes), m, route)

    def _route(self, action: Transfer) -> int:
        key = Route(
            action.payload,
            action.value,
            action.source,
            action.target,
            self._rank_of[action.source],
            self._rank_of[action.target],
        )
        return self.routes.setdefault(key, len(self.routes))


# ---- what the instructions do: the step comes last ------------------------------------------------


def _compute_and_move(run: Run, moves: tuple[Run, ...], step: Step) -> None:
    run(step)
    for move in moves:
        move(step)


def _on_stream(lane: Any, run: Run, step: Step) -> None:
    with lane.compute():
        run(step)


def _move_value(stage: int, slot: int, reader: int, there: int, m: int, step: Step) -> None:
    step.frames[reader][m].inputs[there] = step.frames[stage][m].sends[slot]


def _drop_value(stage: int, slot: int, m: int, step: Step) -> None:
    step.frames[stage][m].sends[slot] = None


def _move_gradient(stage: int, slot: int, holder: int, there: int, m: int, step: Step) -> None:
    handed = step.frames[stage][m].handed
    step.frames[holder][m].later[there] = handed[slot]
    handed[slot] = None


def _send_value(
    route: int, stage: int, slot: int, m: int, is_last: bool, lane: Any, step: Step
) -> None:
    sends = step.frames[stage][m].sends
    value = sends[slot]
    if is_last:
        sends[slot] = None
    step.transport.send(route, m, value if lane is None else (value, lane.mark()))


def _send_gradient(
    route: int, stage: int, slot: int, m: int, is_last: bool, lane: Any, step: Step
) -> None:
    handed = step.frames[stage][m].handed
    grads = handed[slot]
    handed[slot] = None
    step.transport.send(route, m, grads if lane is None else (grads, lane.mark()))


def _receive_value(route: int, stage: int, slot: int, m: int, lanes: Any, step: Step) -> None:
    value = step.transport.receive(route, m)
    step.frames[stage][m].inputs[slot] = value if lanes is None else _across(value, *lanes)


def _receive_gradient(route: int, stage: int, slot: int, m: int, lanes: Any, step: Step) -> None:
    grads = step.transport.receive(route, m)
    step.frames[stage][m].later[slot] = grads if lanes is None else _across(grads, *lanes)


def _across(message: tuple[Any, Any], lane: Any, source: Any) -> Any:
    """The value of a message from another lane, readable on this one; its marks are kept."""
    value, event = message
    tensors = tensors_in(value)
    arrived = iter(lane.receive([t.detach() for t in tensors], event, source))
    return map_tensors(value, lambda t: next(arrived).detach().requires_grad_(t.requires_grad))
