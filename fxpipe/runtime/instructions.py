"""Rank programs made ready to run: each action as one callable that takes the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import torch

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Action, Compute, Direction, Kind, Payload, Transfer, Update
from fxpipe.ir.program import RankProgram, homes_of
from fxpipe.ir.stage import HOST
from fxpipe.runtime import moves
from fxpipe.runtime.backend import Route
from fxpipe.runtime.leaves import NO_LEAVES, Leaves, Place
from fxpipe.runtime.moves import Run
from fxpipe.runtime.stage import StageRunner
from fxpipe.runtime.weights import Changes, shared_changes

if TYPE_CHECKING:
    from fxpipe.runtime.step import Step

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
        updates: whether any stage is updated.
        recomputed: stages and micro-batches with a recomputation of their own.
        runners: per micro-batch, its stages.
        distinct: each of these once, by stage; a stage's copies after it.
        changes: for each of `distinct`, the buffers that it changes, with the other variants of its
            stage that run in turn with it.
        pace: what was learnt from running it.
    """

    ranks: tuple[tuple[Instruction, ...], ...]
    routes: tuple[Route, ...]
    micro_batches: int
    has_backward: bool
    updates: bool
    recomputed: frozenset[tuple[int, int]]
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
        last_used = dict.fromkeys(runner for stages in self.runners[::-1] for runner in stages)
        for runner in reversed(last_used):
            runner.weights.write_back()
        for changes in dict.fromkeys(self.changes):
            changes.buffers.end(keep=keep)

    def new_leaves(self, keeps_graph: bool) -> dict[Place, Leaves]:
        """What stages read in place of parameters that other stages, or their copies, read too."""
        found: dict[Place, Leaves] = {}
        for runner in self.distinct:
            place = runner.weights.place
            leaves = runner.weights.new_leaves(keeps_graph)
            if leaves:
                found[place] = {**leaves, **found.get(place, NO_LEAVES)}
        return found

    def devices(self, stage: int) -> list[torch.device]:
        """Of a stage's runners, one for each rank that runs it."""
        lanes = {stages[stage].weights.place: stages[stage].lane for stages in self.runners}
        return [lane.device for lane in lanes.values()]


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
        ScheduleError: if two ranks run one runner, a stage is updated where it does not run, or
            there are not exactly the stages that the programs speak of.
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
    _require_one_rank(programs, runners)
    maker = _Maker(programs, runners)
    distinct = sorted({runner: None for stages in runners for runner in stages}, key=_order)
    return Executable(
        ranks=tuple(tuple(maker.instructions(program)) for program in programs),
        routes=tuple(maker.routes),
        micro_batches=count,
        has_backward=any(action.kind is not Kind.FORWARD for action in computes),
        updates=any(isinstance(a, Update) for p in programs for a in p.actions),
        recomputed=frozenset(
            (action.stage, action.micro_batch)
            for action in computes
            if action.kind is Kind.RECOMPUTE
        ),
        runners=tuple(map(tuple, runners)),
        distinct=tuple(distinct),
        changes=tuple(_changes(distinct)),
    )


def _require_one_rank(
    programs: Sequence[RankProgram], runners: Sequence[Sequence[StageRunner]]
) -> None:
    """No two threads run one stage's runner."""
    homes: dict[StageRunner, int] = {}
    for program in programs:
        for action in program.actions:
            if isinstance(action, Compute):
                runner = runners[action.micro_batch][action.stage]
                home = homes.setdefault(runner, program.rank)
                if home != program.rank:
                    raise ScheduleError(
                        f"{action} on rank {program.rank}: stage {action.stage} runs on rank {home}, "
                        "and there is no second copy of it"
                    )


def _changes(distinct: Sequence[StageRunner]) -> Iterator[Changes]:
    for _, variants in groupby(distinct, key=_order):
        weights = [runner.weights for runner in variants]
        yield from (shared_changes(weights),) * len(weights)


def _order(runner: StageRunner) -> tuple[int, bool, int]:
    stage, rank = runner.weights.place
    return stage, runner.weights.is_copy, rank


def _label(action: Action) -> Any:
    return torch._C._profiler._RecordFunctionFast(f"fxpipe {action}")


class _Maker:
    def __init__(
        self, programs: Sequence[RankProgram], runners: Sequence[Sequence[StageRunner]]
    ) -> None:
        self._runners = runners
        self._rank_of = homes_of(programs)
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
                    yield self._update(action, program.rank)

    def _compute(self, action: Compute, sent: set[tuple[Payload, str, int, int]]) -> Instruction:
        method = COMPUTES[action.kind]
        runner = self._runners[action.micro_batch][action.stage]
        run: Run = partial(method, runner, action.micro_batch)
        after = tuple(self._moves(action, sent))
        if after:
            run = partial(moves.compute_and_move, run, after)
        if not runner.lane.is_synchronous:
            run = partial(moves.on_stream, runner.lane, run)
        return Instruction(action, run, action.micro_batch, None, _label(action))

    def _update(self, action: Update, rank: int) -> Instruction:
        here = (
            m for (stage, m), home in self._rank_of.items() if (stage, home) == (action.stage, rank)
        )
        m = next(here, None)
        if m is None:
            raise ScheduleError(f"{action} on rank {rank}: the stage does not run there")
        lane = self._runners[m][action.stage].lane
        run: Run = partial(moves.update, action.stage)
        if not lane.is_synchronous:
            run = partial(moves.on_stream, lane, run)
        return Instruction(action, run, m, None, _label(action))

    def _moves(self, action: Compute, sent: set[tuple[Payload, str, int, int]]) -> Iterator[Run]:
        """What hands values to the stages of the same rank."""
        m, stage = action.micro_batch, action.stage
        runners, home = self._runners[m], self._rank_of[stage, m]
        runner = runners[stage]
        if action.kind is Kind.FORWARD:
            for slot, edge in enumerate(runner.ports.writes):
                for reader in edge.consumers:
                    if self._rank_of[reader, m] == home:
                        there = runners[reader].ports.read_slot(edge.value)
                        yield partial(moves.move_value, stage, slot, reader, there, m)
                if (Payload.ACTIVATION, edge.value, stage, m) not in sent:
                    yield partial(moves.drop_value, stage, slot, m)
        elif action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            for slot, edge in enumerate(runner.ports.reads):
                holder = edge.previous_holder(stage)
                if not edge.is_differentiable or holder == HOST:
                    continue
                if self._rank_of[holder, m] == home:
                    there = runners[holder].ports.later_slot(edge.value)
                    yield partial(moves.move_gradient, stage, slot, holder, there, m)

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
            send = moves.send_value if is_value else moves.send_gradient
            run: Run = partial(
                send, route, action.source, slot, m, is_last, source.lane if crosses else None
            )
            return Instruction(action, run, m)
        slot = (target.ports.read_slot if is_value else target.ports.later_slot)(action.value)
        take = moves.receive_value if is_value else moves.receive_gradient
        lanes = (target.lane, source.lane) if crosses else None
        return Instruction(action, partial(take, route, action.target, slot, m, lanes), m, route)

    def _route(self, action: Transfer) -> int:
        key = Route(
            action.payload,
            action.value,
            action.source,
            action.target,
            self._rank_of[action.source, action.micro_batch],
            self._rank_of[action.target, action.micro_batch],
        )
        return self.routes.setdefault(key, len(self.routes))
