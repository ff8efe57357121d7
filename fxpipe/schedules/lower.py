"""Schedule + StageGraph → what every rank does, with its transfers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Action, Compute, Direction, Kind, Payload, Transfer
from fxpipe.ir.plan import Placement
from fxpipe.ir.program import RankProgram
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import HOST, StageGraph
from fxpipe.schedules.depend import MAKES, Result

_Route = tuple[Payload, str, int, int]
"""Payload, value, source stage, target stage."""


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
    graphs = [graph] * schedule.num_micro_batches if isinstance(graph, StageGraph) else graph
    if len(graphs) < schedule.num_micro_batches:
        raise ScheduleError(
            f"{len(graphs)} stage graphs for {schedule.num_micro_batches} micro-batches"
        )
    routes = _Routes(graphs, where)
    links: dict[tuple[int, int], deque[Transfer]] = {}
    for actions in schedule.ranks:
        for action in actions:
            for send in routes.sends(action):
                link = (where.rank_of(send.source), where.rank_of(send.target))
                links.setdefault(link, deque()).append(send)
    return tuple(
        RankProgram(rank, tuple(_program(rank, actions, routes, links, where)))
        for rank, actions in enumerate(schedule.ranks)
    )


def _require_placed(schedule: Schedule, placement: Placement) -> None:
    for rank, actions in enumerate(schedule.ranks):
        for position, action in enumerate(actions):
            home = placement.rank_of(action.stage)
            if home != rank:
                raise ScheduleError(
                    f"rank {rank}, position {position}: {action}: stage {action.stage} is placed "
                    f"on rank {home}"
                )


def _program(
    rank: int,
    actions: tuple[Compute, ...],
    routes: _Routes,
    links: dict[tuple[int, int], deque[Transfer]],
    placement: Placement,
) -> Iterator[Action]:
    """One rank's actions; takes the transfers that it receives off their links."""
    arrived: set[Transfer] = set()
    for action in actions:
        receives = routes.receives(action)
        for needed in receives:
            link = links[placement.rank_of(needed.source), rank]
            while needed not in arrived:
                sent = link.popleft()
                arrived.add(sent)
                yield _other_end(sent)
        arrived.difference_update(receives)
        yield action
        yield from routes.sends(action)


def _other_end(sent: Transfer) -> Transfer:
    return Transfer(
        Direction.RECV, sent.payload, sent.value, sent.source, sent.target, sent.micro_batch
    )


class _Routes:
    """Which transfers, as their senders see them, an action waits for and which it causes."""

    def __init__(self, graphs: Sequence[StageGraph], placement: Placement) -> None:
        # Graphs are compared by identity here: hashing one would walk through all its specs.
        distinct = {id(graph): graph for graph in graphs}
        self._graph_ids = [id(graph) for graph in graphs]

        @cache
        def into(graph: int, kind: Kind, stage: int) -> tuple[_Route, ...]:
            found = _routes_in(kind, stage, distinct[graph])
            return tuple(route for route in found if _crosses(route, placement))

        @cache
        def out(graph: int, kind: Kind, stage: int) -> tuple[_Route, ...]:
            found = _routes_out(kind, stage, distinct[graph])
            return tuple(route for route in found if _crosses(route, placement))

        self._into = into
        self._out = out

    def receives(self, action: Compute) -> tuple[Transfer, ...]:
        """What must have come before the action."""
        graph = self._graph_ids[action.micro_batch]
        return _transfers(self._into(graph, action.kind, action.stage), action.micro_batch)

    def sends(self, action: Compute) -> tuple[Transfer, ...]:
        """What goes out after the action."""
        graph = self._graph_ids[action.micro_batch]
        return _transfers(self._out(graph, action.kind, action.stage), action.micro_batch)


def _transfers(routes: tuple[_Route, ...], micro_batch: int) -> tuple[Transfer, ...]:
    return tuple(Transfer(Direction.SEND, *route, micro_batch) for route in routes)


def _crosses(route: _Route, placement: Placement) -> bool:
    return placement.rank_of(route[2]) != placement.rank_of(route[3])


def _routes_in(kind: Kind, stage: int, graph: StageGraph) -> Iterator[_Route]:
    if kind is Kind.FORWARD:
        for edge in graph.reads(stage):
            if edge.producer != HOST:
                yield Payload.ACTIVATION, edge.value, edge.producer, stage
    elif Result.INPUT_GRAD in MAKES[kind]:
        for edge in (*graph.inputs, *graph.edges):
            if edge.is_differentiable and stage in (edge.producer, *edge.consumers):
                later = edge.next_reader(stage)
                if later is not None:
                    yield Payload.GRADIENT, edge.value, later, stage


def _routes_out(kind: Kind, stage: int, graph: StageGraph) -> Iterator[_Route]:
    if kind is Kind.FORWARD:
        for edge in graph.writes(stage):
            for reader in edge.consumers:
                yield Payload.ACTIVATION, edge.value, stage, reader
    elif Result.INPUT_GRAD in MAKES[kind]:
        for edge in graph.reads(stage):
            holder = edge.previous_holder(stage)
            if edge.is_differentiable and holder != HOST:
                yield Payload.GRADIENT, edge.value, stage, holder
