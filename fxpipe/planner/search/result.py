"""`SearchResult`: the schedule that a search found, and how good it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tabulate import tabulate

from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.lower import lower
from fxpipe.simulator.engine import simulate

_SHOWN = 8
CLOSE: Final = 1e-9
"""Shares of a time that are rounding."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate of a search.

    Attributes:
        name: of the schedule, or of what made it.
        stages: number of stages.
        placement: ``"loop"``, ``"fold"``, or ``"own"``.
        recomputed: how many stages are recomputed.
        makespan: seconds of the step.
        peak: bytes that the fullest rank keeps for backward.
        fits: whether every rank keeps to its limit.
        named: whether it is a schedule with a name, as its generator makes it.
    """

    name: str
    stages: int
    placement: str
    recomputed: int
    makespan: float
    peak: float
    fits: bool
    named: bool


@dataclass(frozen=True)
class SearchResult:
    """What `fxpipe.search_schedule` found.

    Attributes:
        schedule: the best order.
        costs: of the stages of the cut that it is for.
        graph: the stages of that cut and the values between them.
        cluster: the links that were assumed.
        makespan: seconds of the step.
        bound: seconds that no schedule of the cuts and placements that were searched can undercut.
        peaks: bytes that each rank keeps for backward at most.
        limits: bytes that each may keep; infinity for no limit.
        recomputed: the stages whose activations are made anew before their backward.
        tried: every candidate, the best first.
        unit: bytes in `costs` are counted in units of which so many make a byte; above one only where a
            stage had to be divided and its bytes did not divide evenly.
    """

    schedule: Schedule
    costs: tuple[StageCost, ...]
    graph: StageGraph
    cluster: Cluster
    makespan: float
    bound: float
    peaks: tuple[float, ...]
    limits: tuple[float, ...]
    recomputed: frozenset[int]
    tried: tuple[Tried, ...]
    unit: int = 1

    @property
    def placement(self) -> Placement:
        """Stage → rank."""
        return self.schedule.placement

    @property
    def stages_per_rank(self) -> int:
        """Number of stages over number of ranks, as `fxpipe.compile` takes it; rounded down."""
        return len(self.costs) // self.schedule.num_ranks

    @property
    def gap(self) -> float:
        """By which share the step is longer than the bound: 0.02 is 2 %; 0.0 is optimal."""
        gap = self.makespan / self.bound - 1.0 if self.bound else 0.0
        return 0.0 if abs(gap) < CLOSE else gap

    @property
    def best_named(self) -> Tried | None:
        """The best schedule with a name that keeps to the limits and `placements`; None if none does."""
        return next((one for one in self.tried if one.named and one.fits), None)

    @cached_property
    def timeline(self) -> Timeline:
        """The step on a clock."""
        programs = lower(self.schedule, self.graph)
        return simulate(programs, self.costs, self.cluster, self.graph)

    def __str__(self) -> str:
        best = self.best_named
        head = (
            f"{self.schedule.name}: {len(self.costs)} stages on {self.schedule.num_ranks} ranks, "
            f"{self.makespan:.6g} s, {self.gap:.1%} above the bound of {self.bound:.6g} s"
        )
        if best is not None:
            head += f"; best with a name: {best.name}, {best.makespan:.6g} s"
        shown = [one for one in self.tried if one.fits][:_SHOWN]
        return f"{head}\n{table(shown)}"


def table(tried: Sequence[Tried]) -> str:
    """Candidates as text."""
    rows = [
        (one.name, one.stages, one.placement, one.recomputed, one.makespan, one.peak)
        for one in tried
    ]
    headers = ("schedule", "stages", "placement", "recomputed", "seconds", "bytes kept")
    return str(tabulate(rows, headers=headers, floatfmt=".6g"))
