"""What makes a schedule legal: each result is made once, and before it is needed in some order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache

from fxpipe.errors import DeadlockError, IllegalScheduleError
from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.depend import MAKES, Result, needs

_Key = tuple[Result, int, int]
"""A result, its stage, its micro-batch."""

_Needed = Callable[[Kind, int], tuple[tuple[Result, int], ...]]
"""(kind, stage) → what such an action needs."""

_LISTED = 40
"""Problems listed at most; a wrong generator breaks a rule thousands of times."""


def check(schedule: Schedule, graph: StageGraph, *, given: Collection[Result] = ()) -> None:
    """Nothing, if the ranks can run `schedule` on the stages of `graph`.

    Args:
        schedule: what every rank computes, in order.
        graph: the stages and the values between them.
        given: results that exist before the schedule starts, for all stages and micro-batches.

    Raises:
        IllegalScheduleError: if an action is missing, repeated, out of order or on a foreign rank;
            the message lists rank, position and action of each.
        DeadlockError: if the ranks wait for one another; the message says who waits for whom.
    """
    makers, problems = _makers(schedule, graph)
    problems += _missing(schedule, graph, makers, given)
    needed = _needed(graph)
    problems += _late(schedule, needed, makers)
    if problems:
        more = [f"… and {len(problems) - _LISTED} more"] if len(problems) > _LISTED else []
        lines = [f"  - {line}" for line in (*problems[:_LISTED], *more)]
        raise IllegalScheduleError("\n".join([f"{_title(schedule)} cannot run:", *lines]))
    _Run(schedule, needed, makers, given).finish()


def _title(schedule: Schedule) -> str:
    return f"schedule {schedule.name!r}" if schedule.name else "the schedule"


def _makers(schedule: Schedule, graph: StageGraph) -> tuple[dict[_Key, tuple[int, int]], list[str]]:
    """Where each result is made (rank, position), and the actions that have no place where they are."""
    makers: dict[_Key, tuple[int, int]] = {}
    home: dict[int, int] = {}
    problems = []
    for rank, actions in enumerate(schedule.ranks):
        for position, action in enumerate(actions):
            if not 0 <= action.stage < graph.num_stages:
                where = _where(rank, position, action)
                problems.append(f"{where}: there is no stage {action.stage} of {graph.num_stages}")
                continue
            if home.setdefault(action.stage, rank) != rank:
                where = _where(rank, position, action)
                problems.append(f"{where}: stage {action.stage} is on rank {home[action.stage]}")
            for result in MAKES[action.kind]:
                key = (result, action.stage, action.micro_batch)
                first = makers.setdefault(key, (rank, position))
                if first != (rank, position):
                    again = f"rank {first[0]} does at position {first[1]}"
                    where = _where(rank, position, action)
                    problems.append(f"{where} makes the {_name(key)} again: {again}")
    return makers, problems


def _missing(
    schedule: Schedule,
    graph: StageGraph,
    makers: dict[_Key, tuple[int, int]],
    given: Collection[Result],
) -> Iterator[str]:
    """Results that nobody makes."""
    if not makers:
        yield "it is empty"
    home = {stage: at for (_, stage, _), (at, _) in makers.items()}
    for result in _expected(schedule, given):
        for stage in range(graph.num_stages):
            for m in range(schedule.num_micro_batches):
                if (result, stage, m) not in makers:
                    who = f"rank {home[stage]}" if stage in home else "every rank"
                    yield f"{who} lacks the action that makes the {_name((result, stage, m))}"


def _late(
    schedule: Schedule, needed: _Needed, makers: dict[_Key, tuple[int, int]]
) -> Iterator[str]:
    """Results that a rank makes after it needs them itself."""
    for rank, actions in enumerate(schedule.ranks):
        for position, action in enumerate(actions):
            for result, stage in needed(action.kind, action.stage):
                key = (result, stage, action.micro_batch)
                made = makers.get(key)
                if made is not None and made[0] == rank and made[1] > position:
                    yield (
                        f"{_where(rank, position, action)} needs the {_name(key)}, "
                        f"which the rank makes later, at position {made[1]}"
                    )


def _needed(graph: StageGraph) -> _Needed:
    """What an action of a kind on a stage needs, looked up once."""

    @cache
    def needed(kind: Kind, stage: int) -> tuple[tuple[Result, int], ...]:
        return tuple(needs(Compute(kind, stage, 0), graph))

    return needed


def _expected(schedule: Schedule, given: Collection[Result]) -> list[Result]:
    wanted = list(Result) if schedule.has_backward else [Result.OUTPUT]
    return [result for result in wanted if result not in given]


def _where(rank: int, position: int, action: Compute) -> str:
    return f"rank {rank}, position {position}: {action}"


def _name(key: _Key) -> str:
    result, stage, micro_batch = key
    return f"{result} of stage {stage}, micro-batch {micro_batch}"


class _Run:
    """The ranks advanced as far as they can go, in no particular order: the verdict has none."""

    def __init__(
        self,
        schedule: Schedule,
        needed: _Needed,
        makers: dict[_Key, tuple[int, int]],
        given: Collection[Result],
    ) -> None:
        self._schedule = schedule
        self._needed = needed
        self._makers = makers
        self._given = frozenset(given)
        self._made: set[_Key] = set()
        self._positions = [0] * schedule.num_ranks

    def finish(self) -> None:
        """Run all ranks to their ends."""
        moved = True
        while moved:
            moved = any([self._advance(rank) for rank in range(len(self._positions))])
        stuck = [
            self._wait(rank, actions[position])
            for rank, (actions, position) in enumerate(
                zip(self._schedule.ranks, self._positions, strict=True)
            )
            if position < len(actions)
        ]
        if stuck:
            raise DeadlockError(
                "\n".join([f"{_title(self._schedule)} deadlocks:", *(f"  - {s}" for s in stuck)])
            )

    def _advance(self, rank: int) -> bool:
        actions, start = self._schedule.ranks[rank], self._positions[rank]
        position = start
        while position < len(actions) and self._lacks(actions[position]) is None:
            action = actions[position]
            self._made.update((r, action.stage, action.micro_batch) for r in MAKES[action.kind])
            position += 1
        self._positions[rank] = position
        return position > start

    def _lacks(self, action: Compute) -> _Key | None:
        for result, stage in self._needed(action.kind, action.stage):
            key = (result, stage, action.micro_batch)
            if key not in self._made and result not in self._given:
                return key
        return None

    def _wait(self, rank: int, action: Compute) -> str:
        key = self._lacks(action)
        assert key is not None
        other, position = self._makers[key]
        return (
            f"rank {rank} waits to run {action} for the {_name(key)}, "
            f"which rank {other} makes at its position {position}, "
            f"but it stands at {self._positions[other]}"
        )
