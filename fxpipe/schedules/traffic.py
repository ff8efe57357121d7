"""What a step moves between ranks, and what it does not have to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Kind
from fxpipe.ir.plan import Placement
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.routes import routes_in


@dataclass(frozen=True)
class Traffic:
    """Bytes of activations and gradients per micro-batch.

    Attributes:
        sent: (rank, rank) → bytes that go from the one to the other.
        local: bytes that stages of one rank hand to one another, free of transfer.
    """

    sent: Mapping[tuple[int, int], int]
    local: int

    @property
    def total_sent(self) -> int:
        """Bytes over all links."""
        return sum(self.sent.values())

    @property
    def saved(self) -> float:
        """The share of all bytes that the placement spares a transfer."""
        total = self.total_sent + self.local
        return self.local / total if total else 0.0

    def __str__(self) -> str:
        return self.described("{} bytes".format)

    def described(self, nbytes: Callable[[int], str]) -> str:
        """A sentence, with bytes as a function writes them."""
        links = f"{len(self.sent)} link" + ("s" if len(self.sent) != 1 else "")
        return (
            f"{nbytes(self.total_sent)} sent per micro-batch over {links}, "
            f"{nbytes(self.local)} handed over within a rank ({self.saved:.0%} saved)"
        )


def traffic(
    graph: StageGraph, placement: Placement, *, backward: bool = True, micro_batch: int = 0
) -> Traffic:
    """What the edges of `graph` move under a placement, skips included.

    Args:
        graph: the stages and the values between them.
        placement: stage → rank; `Placement.fold` makes skips between mirrored stages local.
        backward: whether gradients go back.
        micro_batch: where there are replicas, the one to follow.

    Raises:
        ScheduleError: if the placement is of another number of stages.
    """
    if len(placement.ranks) != graph.num_stages:
        raise ScheduleError(
            f"a placement of {len(placement.ranks)} stages for a graph of {graph.num_stages}"
        )
    nbytes = {edge.value: edge.nbytes for edge in graph.edges} | {
        edge.value: edge.nbytes for edge in graph.inputs
    }
    ranks = placement.ranks_for(micro_batch)
    sent: dict[tuple[int, int], int] = {}
    local = 0
    for kind in (Kind.FORWARD, Kind.BACKWARD) if backward else (Kind.FORWARD,):
        for stage in range(graph.num_stages):
            for _, value, source, target in routes_in(kind, stage, graph):
                link = ranks[source], ranks[target]
                if link[0] == link[1]:
                    local += nbytes[value]
                else:
                    sent[link] = sent.get(link, 0) + nbytes[value]
    return Traffic(sent, local)
