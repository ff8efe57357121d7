"""`simulate`: the rank programs on a clock, with the costs of stages and links."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import TypeAlias

from fxpipe.errors import DeadlockError, ScheduleError
from fxpipe.ir.action import Action, Compute, Direction, Kind, Payload, Transfer, Update
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.program import RankProgram
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.simulator.clock import SharedClock
from fxpipe.simulator.memory import peak_bytes

_Parcel: TypeAlias = tuple[Payload, str, int, int, int]
"""What both ends of a transfer agree on."""


def simulate(
    programs: Sequence[RankProgram],
    costs: Sequence[StageCost],
    cluster: Cluster | None = None,
    graph: StageGraph | None = None,
) -> Timeline:
    """The timeline that `programs` would have.

    A rank computes one action at a time, at a speed that depends on how many ranks compute. A send
    takes no time of its rank; it has its link (one per ordered pair of ranks, first in, first out)
    to itself for bytes / bandwidth, and arrives `Cluster.latency` later. A receive holds its rank up
    until the value is there. An `Update` takes no time.

    The timeline's transfer spans are, for a send, from when the link takes it to its arrival; for a
    receive, the time its rank waited. Those without duration are left out.

    Args:
        programs: one per rank, in order.
        costs: per stage, for one micro-batch.
        cluster: speeds and links; if None, full speed and free links.
        graph: gives values their bytes; without it a transfer takes the latency alone.

    Raises:
        ScheduleError: if a stage has no cost, or there are more programs than the cluster has ranks.
        DeadlockError: if a receive waits for a send that never happens.
    """
    cluster = cluster or Cluster(len(programs))
    if len(programs) > cluster.ranks:
        raise ScheduleError(f"{len(programs)} rank programs for {cluster.ranks} ranks")
    _require_costs(programs, costs)
    spans = _Engine(programs, costs, cluster, graph).run()
    return Timeline(spans, "simulate", peak_bytes(programs, costs))


def _require_costs(programs: Sequence[RankProgram], costs: Sequence[StageCost]) -> None:
    stages = {a.stage for p in programs for a in p.actions if isinstance(a, Compute)}
    if stages and max(stages) >= len(costs):
        raise ScheduleError(f"no cost for stage {max(stages)}: costs of {len(costs)} stages given")


class _Engine:
    def __init__(
        self,
        programs: Sequence[RankProgram],
        costs: Sequence[StageCost],
        cluster: Cluster,
        graph: StageGraph | None,
    ) -> None:
        self._programs = [program.actions for program in programs]
        self._cluster = cluster
        self._clock = SharedClock(cluster)
        self._work = [_work(cost) for cost in costs]
        self._homes = {
            action.stage: rank
            for rank, actions in enumerate(self._programs)
            for action in actions
            if isinstance(action, Compute)
        }
        edges = (*graph.inputs, *graph.edges) if graph is not None else ()
        self._bytes = {edge.value: edge.nbytes for edge in edges}
        self._positions = [0] * len(programs)
        self._since = [0.0] * len(programs)
        """When a rank came to the action it is at."""
        self._link_free: dict[tuple[int, int], float] = {}
        self._arrivals: dict[_Parcel, float] = {}
        self._waiting: dict[_Parcel, int] = {}
        self._wakes: list[tuple[float, int]] = []
        self._spans: list[list[Span]] = [[] for _ in programs]

    def run(self) -> tuple[Span, ...]:
        """All spans, by rank and start."""
        for rank in range(len(self._programs)):
            self._proceed(rank, 0.0)
        while True:
            wake = self._wakes[0][0] if self._wakes else math.inf
            if wake < self._clock.next_end():
                now, rank = heapq.heappop(self._wakes)
                self._proceed(rank, now)
            elif self._clock.next_end() < math.inf:
                now, rank = self._clock.finish()
                self._done(rank, now)
                self._proceed(rank, now)
            else:
                break
        self._require_finished()
        for spans in self._spans:
            spans.sort(key=lambda span: (span.start, span.end))
        return tuple(span for spans in self._spans for span in spans)

    def _proceed(self, rank: int, now: float) -> None:
        """Let an idle rank go on until it computes, waits or ends."""
        actions = self._programs[rank]
        while self._positions[rank] < len(actions):
            action = actions[self._positions[rank]]
            match action:
                case Compute():
                    self._since[rank] = now
                    self._clock.start(rank, self._work[action.stage][action.kind], now)
                    return
                case Transfer(direction=Direction.RECV):
                    if not self._receive(rank, action, now):
                        return
                case Transfer():
                    self._send(rank, action, now)
                case Update():
                    pass
            self._positions[rank] += 1
            self._since[rank] = now

    def _done(self, rank: int, now: float) -> None:
        self._note(rank, self._programs[rank][self._positions[rank]], self._since[rank], now)
        self._positions[rank] += 1
        self._since[rank] = now

    def _send(self, rank: int, send: Transfer, now: float) -> None:
        other = self._homes[send.target]
        start = max(now, self._link_free.get((rank, other), 0.0))
        nbytes = self._bytes.get(send.value, 0)
        arrival = start + self._cluster.transfer_time(nbytes)
        self._link_free[rank, other] = arrival - self._cluster.latency
        self._note(rank, send, start, arrival)
        parcel = _parcel(send)
        self._arrivals[parcel] = arrival
        waiting = self._waiting.pop(parcel, None)
        if waiting is not None:
            heapq.heappush(self._wakes, (arrival, waiting))

    def _receive(self, rank: int, receive: Transfer, now: float) -> bool:
        """Whether the value is there; if not, the rank will be woken."""
        parcel = _parcel(receive)
        arrival = self._arrivals.get(parcel)
        if arrival is None:
            self._waiting[parcel] = rank
        elif arrival > now:
            heapq.heappush(self._wakes, (arrival, rank))
        else:
            self._note(rank, receive, self._since[rank], now)
            return True
        return False

    def _note(self, rank: int, action: Action, start: float, end: float) -> None:
        if end > start or isinstance(action, Compute):
            self._spans[rank].append(Span(rank, action, start, end))

    def _require_finished(self) -> None:
        stuck = [
            f"rank {rank} waits for {actions[position]}"
            for rank, (actions, position) in enumerate(
                zip(self._programs, self._positions, strict=True)
            )
            if position < len(actions)
        ]
        if stuck:
            raise DeadlockError("\n".join(["the ranks wait for one another:", *stuck]))


def _work(cost: StageCost) -> dict[Kind, float]:
    return {
        Kind.FORWARD: cost.forward,
        Kind.BACKWARD: cost.backward,
        Kind.BACKWARD_INPUT: cost.input,
        Kind.BACKWARD_WEIGHT: cost.weight,
    }


def _parcel(transfer: Transfer) -> _Parcel:
    return (
        transfer.payload,
        transfer.value,
        transfer.source,
        transfer.target,
        transfer.micro_batch,
    )
