"""Schedule + StageGraph → what every rank does, with its transfers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import (
    Action,
    Cell,
    Compute,
    Direction,
    Kind,
    Payload,
    Transfer,
    Update,
    computes_of,
)
from fxpipe.ir.plan import Placement
from fxpipe.ir.program import RankProgram
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.routes import Way, routes_in, routes_out


def lower(
    schedule: Schedule,
    graph: StageGraph | Sequence[StageGraph],
    placement: Placement | None = None,
) -> tuple[RankProgram, ...]:
    """The schedule's actions with sends right after what makes a value, receives right before its use.

    Activations go straight from their producer to each reader; gradients of differentiable values
    down the chain of readers (`Edge.previous_holder`), and none to the caller. Stages of one rank
    hand values over without a transfer.

    Between two ranks, receives stand in the order of the sends: where a value overtakes another on
    the way to a later use (a portal beside a neighbour's edge), its receive moves up. It then waits
    for nothing that the later receive would not wait for.

    A fused cell becomes its computations in order, between the receives and the sends of them all.

    Args:
        schedule: a legal schedule (see `fxpipe.schedules.check.check`).
        graph: the stages and the values between them; one per micro-batch if they differ (a model
            that decides on its data may make other values for one than for another).
        placement: stage → rank; where the schedule's actions stand, if None.

    Raises:
        ScheduleError: if an action stands on another rank than `placement` says, or there are
            fewer graphs than micro-batches.
    """
    where = placement or schedule.placement
    _require_placed(schedule, where)
    count = schedule.num_micro_batches
    if not isinstance(graph, StageGraph) and len(graph) < count:
        raise ScheduleError(f"{len(graph)} stage graphs for {count} micro-batches")
    routes = _Routes(graph, where, count)
    links: dict[tuple[int, int], deque[_Parcel]] = {}
    for rank, actions in enumerate(schedule.computes):
        for action in actions:
            for parcel in routes.sends(action):
                links.setdefault((rank, parcel[1].to_rank), deque()).append(parcel)
    return tuple(
        RankProgram(rank, tuple(_program(rank, cells, routes, links)))
        for rank, cells in enumerate(schedule.ranks)
    )


def _require_placed(schedule: Schedule, placement: Placement) -> None:
    for rank, cells in enumerate(schedule.ranks):
        for position, cell in enumerate(cells):
            for action in computes_of(cell):
                home = placement.rank_of(action.stage, action.micro_batch)
                if home != rank:
                    raise ScheduleError(
                        f"rank {rank}, position {position}: {action}: stage {action.stage} is "
                        f"placed on rank {home}"
                    )


def _program(
    rank: int,
    cells: tuple[Cell, ...],
    routes: _Routes,
    links: dict[tuple[int, int], deque[_Parcel]],
) -> Iterator[Action]:
    """One rank's actions; takes the transfers that it receives off their links."""
    arrived: set[int] = set()
    for cell in cells:
        if isinstance(cell, Update):
            yield cell
            continue
        actions = computes_of(cell)
        for action in actions:
            for key, route, _ in routes.receives(action):
                link = links[route.from_rank, rank]
                while key not in arrived:
                    other, sent, micro_batch = link.popleft()
                    arrived.add(other)
                    yield sent.end(Direction.RECV, micro_batch)
                arrived.discard(key)
        yield from actions
        for action in actions:
            for _, route, micro_batch in routes.sends(action):
                yield route.end(Direction.SEND, micro_batch)


@dataclass(frozen=True, slots=True)
class _Route:
    """A way that a value, or its gradient, takes from one rank to another."""

    payload: Payload
    value: str
    source: int
    target: int
    from_rank: int
    to_rank: int

    def end(self, direction: Direction, micro_batch: int) -> Transfer:
        return Transfer(direction, self.payload, self.value, self.source, self.target, micro_batch)


_Parcel = tuple[int, _Route, int]
"""One micro-batch's transfer on a route: a number of its own, the route, the micro-batch."""


class _Routes:
    """Which transfers an action waits for and which it causes."""

    def __init__(
        self, graphs: StageGraph | Sequence[StageGraph], placement: Placement, count: int
    ) -> None:
        self._graphs = graphs
        self._count = count
        self._placement = placement
        self._numbers: dict[_Route, int] = {}
        self._known: dict[tuple[int, tuple[int, ...], Kind, int, bool], list[tuple[int, _Route]]]
        self._known = {}

    def receives(self, action: Compute) -> Iterator[_Parcel]:
        """What must have come before the action."""
        return self._parcels(action, into=True)

    def sends(self, action: Compute) -> Iterator[_Parcel]:
        """What goes out after the action."""
        return self._parcels(action, into=False)

    def _parcels(self, action: Compute, *, into: bool) -> Iterator[_Parcel]:
        m = action.micro_batch
        graph = self._graphs if isinstance(self._graphs, StageGraph) else self._graphs[m]
        ranks = self._placement.ranks_for(m)
        # Graphs are compared by identity here: hashing one would walk through all its specs.
        key = (id(graph), ranks, action.kind, action.stage, into)
        if key not in self._known:
            find = routes_in if into else routes_out
            self._known[key] = list(self._crossing(find(action.kind, action.stage, graph), ranks))
        for number, route in self._known[key]:
            yield number * self._count + m, route, m

    def _crossing(
        self, ways: Iterator[Way], ranks: tuple[int, ...]
    ) -> Iterator[tuple[int, _Route]]:
        for way in ways:
            source, target = ranks[way[2]], ranks[way[3]]
            if source != target:
                route = _Route(*way, source, target)
                yield self._numbers.setdefault(route, len(self._numbers)), route
