"""The links between ranks, as a clock sees them: when a value that is sent arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from fxpipe.ir.action import Action, Compute, Payload, Transfer
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.stage import StageGraph

Parcel: TypeAlias = tuple[Payload, str, int, int, int]
"""What both ends of a transfer agree on."""


def parcel_of(transfer: Transfer) -> Parcel:
    """The parcel that a send hands over and a receive asks for."""
    return (
        transfer.payload,
        transfer.value,
        transfer.source,
        transfer.target,
        transfer.micro_batch,
    )


class Wires:
    """One link per ordered pair of ranks, first in, first out.

    Attributes:
        arrivals: when what was sent arrives.
    """

    def __init__(
        self, programs: Sequence[Sequence[Action]], cluster: Cluster, graph: StageGraph | None
    ) -> None:
        self._latency = cluster.latency
        edges = (*graph.inputs, *graph.edges) if graph is not None else ()
        bandwidth = cluster.bandwidth
        self._busy = {edge.value: edge.nbytes / bandwidth for edge in edges if bandwidth}
        self._homes = {
            (action.stage, action.micro_batch): rank
            for rank, actions in enumerate(programs)
            for action in actions
            if type(action) is Compute
        }
        self._free: dict[tuple[int, int], float] = {}
        self.arrivals: dict[Parcel, float] = {}

    def send(self, rank: int, parcel: Parcel, now: float) -> tuple[float, float]:
        """When the link takes the value, and when it arrives."""
        _, value, _, target, micro_batch = parcel
        link = (rank, self._homes[target, micro_batch])
        start = max(now, self._free.get(link, 0.0))
        free = start + self._busy.get(value, 0.0)
        self._free[link] = free
        self.arrivals[parcel] = arrival = free + self._latency
        return start, arrival
