"""A schedule laid out on a stage graph: who makes each result where, and what each action needs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

from fxpipe.ir.action import Cell, Compute, Kind, computes_of
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.depend import MAKES, Result, needs

Key: TypeAlias = tuple[Result, int, int]
"""A result, its stage, its micro-batch."""


class Layout:
    """Where everything of a schedule stands.

    Attributes:
        schedule: what every rank computes, in order.
        graph: the stages and the values between them.
        makers: result → (rank, index among its computations) of the first that makes it.
        repeats: what makes a result again: rank, position, action, result.
    """

    def __init__(self, schedule: Schedule, graph: StageGraph) -> None:
        self.schedule = schedule
        self.graph = graph
        self.makers: dict[Key, tuple[int, int]] = {}
        self.repeats: list[tuple[int, int, Compute, Key]] = []
        self._positions = [
            [position for position, cell in enumerate(cells) for _ in computes_of(cell)]
            for cells in schedule.ranks
        ]
        for rank, actions in enumerate(schedule.computes):
            for at, action in enumerate(actions):
                if 0 <= action.stage < graph.num_stages:
                    self._note(rank, at, action)

        @cache
        def needed(kind: Kind, stage: int, recomputed: bool) -> tuple[tuple[Result, int], ...]:
            return tuple(needs(Compute(kind, stage, 0), graph, recomputed=recomputed))

        self._needed = needed

    def _note(self, rank: int, at: int, action: Compute) -> None:
        for result in MAKES[action.kind]:
            key = (result, action.stage, action.micro_batch)
            if self.makers.setdefault(key, (rank, at)) != (rank, at):
                self.repeats.append((rank, self._positions[rank][at], action, key))

    def needs(self, action: Compute) -> Iterator[Key]:
        """What must exist before an action starts; nothing for a stage that is not there."""
        stage, m = action.stage, action.micro_batch
        if 0 <= stage < self.graph.num_stages:
            recomputed = (Result.ACTIVATIONS, stage, m) in self.makers
            for result, source in self._needed(action.kind, stage, recomputed):
                yield result, source, m

    def entries(self) -> Iterator[tuple[int, int, Compute]]:
        """All computations, with rank and position."""
        for rank, actions in enumerate(self.schedule.computes):
            for position, action in zip(self._positions[rank], actions, strict=True):
                yield rank, position, action

    def position(self, rank: int, at: int) -> int:
        """The position, among a rank's cells, of its computation number `at`."""
        return self._positions[rank][at]

    @staticmethod
    def where(rank: int, position: int, cell: Cell) -> str:
        """Rank, position and action, for a message."""
        return f"rank {rank}, position {position}: {cell}"


def key_text(key: Key) -> str:
    """A result in words."""
    result, stage, micro_batch = key
    return f"{result} of stage {stage}, micro-batch {micro_batch}"


def title_of(schedule: Schedule) -> str:
    """How a message calls a schedule."""
    return f"schedule {schedule.name!r}" if schedule.name else "the schedule"
