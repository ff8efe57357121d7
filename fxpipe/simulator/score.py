"""How good an order is, and nothing else: numbers in, numbers out, for searches that try thousands."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Compute
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost, with_reads
from fxpipe.ir.plan import Placement
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.simulator.tables import KINDS, Tables

Orders: TypeAlias = Sequence[Sequence[int]]
"""Rank → the numbers of its actions, in order."""


@dataclass(frozen=True, slots=True)
class Score:
    """What an order comes to.

    Attributes:
        makespan: seconds of the step; infinite if the ranks wait for one another.
        span: seconds of the longest rank, from its own first action to its last.
        peaks: bytes kept at most, per rank.
    """

    makespan: float
    span: float
    peaks: tuple[int, ...]


class Scorer:
    """Scores orders of the computations of fixed stages on fixed ranks.

    Times are those of `fxpipe.simulator.engine.simulate` for ranks at full speed, memory that of
    `fxpipe.simulator.memory.peak_bytes`, for orders that are complete and have backwards: whether they
    are, `fxpipe.schedules.check.check` says. Actions are numbers; fused cells are opened.

    Attributes:
        tables: what is fixed, by the number of the action.
    """

    def __init__(
        self,
        graph: StageGraph,
        costs: Sequence[StageCost],
        placement: Placement,
        micro_batches: int,
        cluster: Cluster | None = None,
        recomputed: Collection[int] = (),
    ) -> None:
        """A scorer.

        Args:
            graph: the stages and the values between them.
            costs: per stage, for one micro-batch.
            placement: stage → rank.
            micro_batches: number of micro-batches.
            cluster: the links; free ones if None.
            recomputed: stages whose activations a recomputation makes, in every order scored.
        """
        self._stages = graph.num_stages
        self._micro_batches = micro_batches
        self._cluster = cluster or Cluster(placement.num_ranks)
        self.tables = Tables(
            graph,
            with_reads(costs, graph),
            placement,
            micro_batches,
            self._cluster,
            frozenset(recomputed),
        )

    def number(self, action: Compute) -> int:
        """The number of an action: ``(kind × stages + stage) × micro-batches + micro-batch``."""
        kind = KINDS.index(action.kind)
        return (kind * self._stages + action.stage) * self._micro_batches + action.micro_batch

    def action(self, number: int) -> Compute:
        """The action of a number."""
        rest, micro_batch = divmod(number, self._micro_batches)
        kind, stage = divmod(rest, self._stages)
        return Compute(KINDS[kind], stage, micro_batch)

    def orders(self, schedule: Schedule) -> list[list[int]]:
        """A schedule as numbers.

        Raises:
            ScheduleError: if it has no backward, or stages or micro-batches that the scorer has not.
        """
        if not schedule.has_backward:
            raise ScheduleError(
                "a scorer counts what is kept for backward, and the schedule has none: use simulate"
            )
        have = (schedule.num_stages, schedule.num_micro_batches)
        if have[0] > self._stages or have[1] > self._micro_batches:
            raise ScheduleError(
                f"a schedule of {have[0]} stages and {have[1]} micro-batches, for a scorer of "
                f"{self._stages} and {self._micro_batches}"
            )
        return [[self.number(action) for action in row] for row in schedule.computes]

    def schedule(self, orders: Orders, name: str = "") -> Schedule:
        """Numbers as a schedule."""
        return Schedule(tuple(tuple(map(self.action, row)) for row in orders), name)

    def score(self, orders: Orders) -> Score:
        """What the orders come to. O(actions × needs)."""
        run = _Run(self.tables, self._cluster.latency, orders)
        run.go()
        peaks = tuple(run.peaks)
        if any(at < len(row) for at, row in zip(run.positions, orders, strict=True)):
            return Score(math.inf, math.inf, peaks)
        spans = (end - start for start, end in zip(run.firsts, run.now, strict=True))
        return Score(max(run.now), max(spans), peaks)

    def ends(self, orders: Orders) -> list[float]:
        """The end of every action, by its number; -1 for those that do not come to run."""
        run = _Run(self.tables, self._cluster.latency, orders)
        run.go()
        return run.ends


class _Run:
    """Orders run on the tables."""

    def __init__(self, tables: Tables, latency: float, orders: Orders) -> None:
        self._tables = tables
        self._latency = latency
        self._orders = orders
        self._moments = [-1.0] * tables.moments
        self._free = [0.0] * tables.links
        self._waiting: dict[int, list[int]] = {}
        self._ready = list(range(len(orders)))
        self.positions = [0] * len(orders)
        self.firsts = [0.0] * len(orders)
        self.now = [0.0] * len(orders)
        self.kept = [0] * len(orders)
        self.peaks = [0] * len(orders)
        self.ends = [-1.0] * len(tables.seconds)

    def go(self) -> None:
        """Every rank as far as it can go, until none can."""
        while self._ready:
            self._advance(self._ready.pop())

    def _advance(self, rank: int) -> None:
        """One rank until it waits for a moment that has not come. The hot loop: locals only."""
        tables, moments, ends = self._tables, self._moments, self.ends
        needs, makes, sends = tables.needs, tables.makes, tables.sends
        seconds, more, less = tables.seconds, tables.more, tables.less
        waiting, row, at = self._waiting, self._orders[rank], self.positions[rank]
        now, kept, peak = self.now[rank], self.kept[rank], self.peaks[rank]
        for number in row[at:]:
            start = now
            for moment, later in needs[number]:
                came = moments[moment]
                if came < 0.0:
                    waiting.setdefault(moment, []).append(rank)
                    break
                if came + later > start:
                    start = came + later
            else:
                if not at:
                    self.firsts[rank] = start
                kept += more[number]
                if kept > peak:
                    peak = kept
                kept -= less[number]
                ends[number] = now = start + seconds[number]
                moment = makes[number]
                if moment >= 0:
                    moments[moment] = now
                    if moment in waiting:
                        self._ready += waiting.pop(moment)
                if sends[number]:
                    self._send(number, now)
                at += 1
                continue
            break
        self.positions[rank], self.now[rank] = at, now
        self.kept[rank], self.peaks[rank] = kept, peak

    def _send(self, number: int, now: float) -> None:
        """Put what an action sends on its links, each to itself for as long as it takes."""
        for moment, link, busy in self._tables.sends[number]:
            self._free[link] = max(now, self._free[link]) + busy
            self._moments[moment] = self._free[link] + self._latency
            self._ready += self._waiting.pop(moment, ())
