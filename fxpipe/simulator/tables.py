"""Everything that is fixed about a step, by the number of the action: what it costs, needs and makes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, TypeAlias

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.depend import MAKES, Result, needs
from fxpipe.schedules.routes import Way, routes_in, routes_out

KINDS: Final = tuple(Kind)
_AWAITED: Final = (Result.OUTPUT, Result.INPUT_GRAD, Result.ACTIVATIONS)
"""The results that actions wait for."""

Need: TypeAlias = tuple[int, float]
"""A moment's number, seconds after it."""

Sending: TypeAlias = tuple[int, int, float]
"""A moment's number, a link's, seconds for which the link is busy."""


class Tables:
    """The tables of a step, each indexed by the action's number.

    Actions wait for moments: that a result is made, or (where links are busy for a while) that a value
    has arrived; moments have numbers of their own.

    Attributes:
        seconds: how long the action takes.
        more: bytes kept more at its start.
        less: bytes kept less at its end.
        needs: the moments it waits for.
        makes: the moment that it brings about, -1 if nothing waits for it.
        sends: what it puts on links of finite bandwidth.
        moments: how many moments there are.
        links: how many links of finite bandwidth.
    """

    def __init__(
        self,
        graph: StageGraph,
        costs: Sequence[StageCost],
        placement: Placement,
        micro_batches: int,
        cluster: Cluster,
        recomputed: Collection[int],
    ) -> None:
        self._graph = graph
        self._placement = placement
        self._micro_batches = micro_batches
        self._cluster = cluster
        self._nbytes = {edge.value: edge.nbytes for edge in (*graph.inputs, *graph.edges)}
        self._arrivals: dict[Way, int] = {}
        self._links: dict[tuple[int, int], int] = {}
        self.seconds: list[float] = []
        self.more: list[int] = []
        self.less: list[int] = []
        self.needs: list[tuple[Need, ...]] = []
        self.makes: list[int] = []
        self.sends: list[tuple[Sending, ...]] = []
        for kind in KINDS:
            for stage, cost in enumerate(costs):
                more, less = _kept(kind, cost, stage in recomputed)
                awaited = tuple(
                    needs(Compute(kind, stage, 0), graph, recomputed=stage in recomputed)
                )
                self.seconds += [cost.seconds(kind)] * micro_batches
                self.more += [more] * micro_batches
                self.less += [less] * micro_batches
                for m in range(micro_batches):
                    self.needs.append(tuple(self._needed(kind, stage, m, awaited)))
                    self.makes.append(self._made(kind, stage, m))
                    self.sends.append(tuple(self._sent(kind, stage, m)))
        self.moments = (len(_AWAITED) * graph.num_stages + len(self._arrivals)) * micro_batches
        self.links = len(self._links)

    def _moment(self, result: Result, stage: int, micro_batch: int) -> int:
        row = _AWAITED.index(result) * self._graph.num_stages + stage
        return row * self._micro_batches + micro_batch

    def _arrival(self, way: Way, micro_batch: int) -> int:
        row = len(_AWAITED) * self._graph.num_stages
        row += self._arrivals.setdefault(way, len(self._arrivals))
        return row * self._micro_batches + micro_batch

    def _made(self, kind: Kind, stage: int, micro_batch: int) -> int:
        awaited = [result for result in MAKES[kind] if result in _AWAITED]
        return self._moment(awaited[0], stage, micro_batch) if awaited else -1

    def _needed(
        self, kind: Kind, stage: int, m: int, awaited: Sequence[tuple[Result, int]]
    ) -> Iterator[Need]:
        ranks = self._placement.ranks_for(m)
        for result, source in awaited:
            if ranks[source] == ranks[stage]:
                yield self._moment(result, source, m), 0.0
            elif not self._cluster.bandwidth:
                yield self._moment(result, source, m), self._cluster.latency
        if self._cluster.bandwidth:
            for way in routes_in(kind, stage, self._graph):
                if ranks[way[2]] != ranks[stage]:
                    yield self._arrival(way, m), 0.0

    def _sent(self, kind: Kind, stage: int, m: int) -> Iterator[Sending]:
        if self._cluster.bandwidth:
            ranks = self._placement.ranks_for(m)
            for way in routes_out(kind, stage, self._graph):
                link = ranks[stage], ranks[way[3]]
                if link[0] != link[1]:
                    number = self._links.setdefault(link, len(self._links))
                    busy = self._nbytes[way[1]] / self._cluster.bandwidth
                    yield self._arrival(way, m), number, busy


def _kept(kind: Kind, cost: StageCost, recomputed: bool) -> tuple[int, int]:
    """Bytes more at the start and less at the end, as in `fxpipe.schedules.memory.changes`."""
    first = cost.input_bytes if recomputed else cost.saved_bytes
    return {
        Kind.FORWARD: (first, 0),
        Kind.RECOMPUTE: (cost.saved_bytes - first, 0),
        Kind.BACKWARD: (0, cost.saved_bytes),
        Kind.BACKWARD_INPUT: (0, cost.saved_bytes - cost.kept_for_weight),
        Kind.BACKWARD_WEIGHT: (0, cost.kept_for_weight),
    }[kind]
