"""A cut of a model on its ranks: what an order of its computations comes to."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from fxpipe.errors import DeadlockError
from fxpipe.ir.action import Kind
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.lower import lower
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.metrics import device_span
from fxpipe.simulator.score import Score, Scorer

Orders: TypeAlias = list[list[int]]
"""Rank → the numbers of its actions, in order, as `fxpipe.simulator.score.Scorer` counts them."""


@dataclass(frozen=True)
class Cut:
    """A model cut into stages.

    Attributes:
        costs: per stage, for one micro-batch.
        graph: the stages and the values between them.
    """

    costs: tuple[StageCost, ...]
    graph: StageGraph

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.costs)


class Problem:
    """The stages of a cut on their ranks, for so many micro-batches and so much memory.

    Attributes:
        cut: the stages.
        placement: stage → rank.
        micro_batches: number of micro-batches.
        cluster: the links, and how ranks slow each other down.
        limits: bytes that each rank may keep for backward; infinity for no limit.
        recomputed: stages whose activations are made anew before backward.
        scorer: numbers for actions, and a fast simulator for ranks at full speed.
    """

    def __init__(
        self,
        cut: Cut,
        placement: Placement,
        micro_batches: int,
        cluster: Cluster,
        limits: Sequence[float],
        recomputed: Collection[int] = (),
    ) -> None:
        self.cut = cut
        self.placement = placement
        self.micro_batches = micro_batches
        self.cluster = cluster
        self.limits = _less_second_weights(limits, cut, placement)
        self.recomputed = frozenset(recomputed)
        self.scorer = Scorer(
            cut.graph, cut.costs, placement, micro_batches, cluster, self.recomputed
        )

    @property
    def ranks(self) -> range:
        """The ranks."""
        return range(self.placement.num_ranks)

    def score(self, orders: Sequence[Sequence[int]]) -> Score:
        """What the orders come to, ranks slowing each other down where the cluster says so."""
        score = self.scorer.score(orders)
        if set(self.cluster.speeds) == {1.0} or math.isinf(score.makespan):
            return score
        programs = lower(self.schedule(orders, ""), self.cut.graph)
        try:
            timeline = simulate(programs, self.cut.costs, self.cluster, self.cut.graph)
        except DeadlockError:
            return replace(score, makespan=math.inf, span=math.inf)
        return replace(score, makespan=timeline.makespan, span=device_span(timeline))

    def fits(self, score: Score) -> bool:
        """Whether every rank keeps to its limit."""
        return all(peak <= limit for peak, limit in zip(score.peaks, self.limits, strict=True))

    def schedule(self, orders: Sequence[Sequence[int]], name: str) -> Schedule:
        """Numbers as a schedule."""
        made = self.scorer.schedule(orders, name)
        return replace(made, replicas=1 + len(self.placement.replicas))

    def row(self, kind: Kind, stage: int) -> int:
        """The number of a stage's first action of a kind; those of later micro-batches follow."""
        return (list(Kind).index(kind) * self.cut.num_stages + stage) * self.micro_batches

    def number(self, kind: Kind, stage: int, micro_batch: int) -> int:
        """The number of an action."""
        return self.row(kind, stage) + micro_batch

    def rank_of(self, number: int) -> int:
        """The rank of a number's action, of the first copy where there are several."""
        return self.placement.ranks[number // self.micro_batches % self.cut.num_stages]


def _less_second_weights(
    limits: Sequence[float], cut: Cut, placement: Placement
) -> tuple[float, ...]:
    """The limits less what further copies of the stages take: their weights, and gradients of these."""
    left = list(limits)
    for ranks in placement.replicas:
        for stage, rank in enumerate(ranks):
            left[rank] -= 2 * cut.costs[stage].parameter_bytes
    return tuple(left)
