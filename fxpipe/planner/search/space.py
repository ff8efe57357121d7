"""What a search may choose from, and a choice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeAlias

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Kind
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.planner.search.problem import Cut, Orders, Problem
from fxpipe.simulator.score import Score

PLACEMENTS: Final = ("loop", "fold")
"""Placements with a name, for any number of stages per rank."""

_Key: TypeAlias = tuple[int, Placement, frozenset[int], int]


@dataclass(frozen=True)
class Candidate:
    """An order of a problem's actions, with what it comes to.

    Attributes:
        name: where it comes from.
        problem: the stages on their ranks.
        orders: the order.
        score: what it comes to.
        named: whether it is one of the schedules with a name, as its generator makes it.
    """

    name: str
    problem: Problem
    orders: Orders
    score: Score
    named: bool = False

    @cached_property
    def fits(self) -> bool:
        """Whether it keeps to the memory limits."""
        return self.problem.fits(self.score)

    @property
    def splits(self) -> bool:
        """Whether any backward is in two halves."""
        problem = self.problem
        first = problem.row(Kind.BACKWARD_INPUT, 0)
        halves = range(first, first + 2 * problem.cut.num_stages * problem.micro_batches)
        return any(number in halves for row in self.orders for number in row)

    @property
    def schedule(self) -> Schedule:
        """As a schedule."""
        return self.problem.schedule(self.orders, self.name)

    @property
    def rank(self) -> tuple[float, ...]:
        """The less, the better: time first; of two that take as long, the one with less to do."""
        problem = self.problem
        return (
            float(f"{self.score.makespan:.12g}"),
            len(problem.placement.replicas),
            len(problem.recomputed),
            sum(map(len, self.orders)),
            not self.named,
            max(self.score.peaks),
        )


@dataclass(frozen=True)
class Space:
    """What a search may choose from.

    Attributes:
        cuts: the cuts into stages.
        ranks: number of ranks.
        micro_batches: number of micro-batches.
        cluster: the links.
        limits: bytes that each rank may keep for backward; infinity for no limit.
        split: whether backwards may be split.
        recompute: whether activations may be made anew before backward.
        replicas: whether there may be two copies of every stage.
        placements: ``"loop"``, ``"fold"``, or placements of one of the cuts.
        any_named: whether schedules with a name may have other placements, too.
    """

    cuts: tuple[Cut, ...]
    ranks: int
    micro_batches: int
    cluster: Cluster
    limits: tuple[float, ...]
    split: bool = True
    recompute: bool = True
    replicas: bool = False
    placements: tuple[str | Placement, ...] = PLACEMENTS
    any_named: bool = True
    _known: dict[_Key, Problem] = field(default_factory=dict, compare=False)

    def problem(
        self,
        cut: Cut,
        placement: Placement,
        recomputed: Collection[int] = (),
        micro_batches: int | None = None,
    ) -> Problem:
        """A cut on its ranks."""
        count = micro_batches or self.micro_batches
        key = (cut.num_stages, placement, frozenset(recomputed), count)
        if key not in self._known:
            limits = self.limits
            self._known[key] = Problem(cut, placement, count, self.cluster, limits, recomputed)
        return self._known[key]

    def smaller(self, problem: Problem, micro_batches: int) -> Problem:
        """The problem with fewer micro-batches."""
        return self.problem(problem.cut, problem.placement, problem.recomputed, micro_batches)

    def problems(self, cuts: Sequence[Cut] | None = None) -> Iterator[Problem]:
        """Cuts (all if None) on the ranks in every way that is wished for, nothing recomputed."""
        for cut in self.cuts if cuts is None else cuts:
            for placement in self.placements_of(cut):
                yield self.problem(cut, placement)

    def placements_of(self, cut: Cut) -> list[Placement]:
        """The ways to put a cut's stages on the ranks, no two alike."""
        found: dict[Placement, None] = {}
        for wish in self.placements:
            if isinstance(wish, Placement):
                if len(wish.ranks) == cut.num_stages:
                    found[wish] = None
            elif wish == "loop":
                found[Placement.round_robin(cut.num_stages, self.ranks)] = None
            elif cut.num_stages % self.ranks == 0:
                found[Placement.fold(self.ranks, cut.num_stages // self.ranks)] = None
        return list(found)

    def placeable(self) -> Space:
        """The cuts that can be placed in one of the ways that are wished for.

        Raises:
            ScheduleError: if none can.
        """
        cuts = tuple(cut for cut in self.cuts if self.any_named or self.placements_of(cut))
        if not cuts:
            wishes = (
                f"a placement of {len(wish.ranks)} stages" if isinstance(wish, Placement) else wish
                for wish in self.placements
            )
            have = ", ".join(str(cut.num_stages) for cut in self.cuts)
            raise ScheduleError(
                f"no cut can be placed as asked, by {', '.join(wishes)}: the cuts have {have} stages on "
                f"{self.ranks} ranks; stages_per_rank says which there are"
            )
        return replace(self, cuts=cuts)

    def allows(self, schedule: Schedule) -> bool:
        """Whether a schedule with a name has nothing that is not wished for."""
        few = self.replicas or schedule.replicas == 1
        return few and (self.split or not schedule.splits_backward)

    def allows_at(self, cut: Cut, placement: Placement) -> bool:
        """Whether a schedule with a name may stand there; of one with copies, its first copy."""
        return self.any_named or Placement(placement.ranks) in self.placements_of(cut)

    def saves(self, stages: Sequence[int], cut: Cut) -> list[int]:
        """Of some stages those whose recomputation saves memory, as far as is known."""
        costs = cut.costs
        if not self.recompute:
            return []
        return [s for s in stages if 0 < costs[s].input_bytes < costs[s].saved_bytes]
