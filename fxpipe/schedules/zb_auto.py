"""Zero bubble for given costs and memory, greedily (Qi et al., arXiv 2401.10241, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.cost import StageCost
from fxpipe.ir.schedule import Schedule

_ORDER = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True)
class Choices:
    """What the greedy search is unsure of; all eight combinations are tried.

    Attributes:
        overrun: warm up with one more forward even if the first backward then waits for it.
        backward_first: leave a forward out where the next rank has enough and a backward would wait.
        fill: put a weight half into a gap that is too short for it and delays this rank no more than the
            slowest one is delayed already.
    """

    overrun: bool
    backward_first: bool
    fill: bool


def zb_auto(
    costs: Sequence[StageCost],
    micro_batches: int,
    *,
    hop: float = 0.0,
    limits: Sequence[float] | None = None,
) -> Schedule:
    """The best of eight greedy schedules with split backwards, one stage per rank.

    ZB-1p is the one with limits of p activations, ZB-2p with 2 p: there the bubble is next to nothing
    (device span: every rank from its own first action to its last).

    Args:
        costs: per stage, for one micro-batch.
        micro_batches: number of micro-batches.
        hop: seconds that a value is on its way to the next rank.
        limits: bytes that each rank may keep; none if None.

    Raises:
        ScheduleError: if no order keeps to the limits.
    """
    best: tuple[float, Schedule] | None = None
    for flags in product((True, False), repeat=3):
        greedy = _Greedy(costs, micro_batches, hop, limits, Choices(*flags))
        if greedy.run() and (best is None or greedy.span < best[0]):
            best = greedy.span, greedy.schedule()
    if best is None:
        raise ScheduleError(
            f"no zero-bubble order keeps to {limits} bytes: a stage needs room for at least one "
            f"micro-batch, {[cost.saved_bytes for cost in costs]} bytes"
        )
    return best[1]


class _Greedy:
    """The ranks' rows, grown one round (a forward and an input half of every rank) at a time."""

    def __init__(
        self,
        costs: Sequence[StageCost],
        micro_batches: int,
        hop: float,
        limits: Sequence[float] | None,
        choices: Choices,
    ) -> None:
        self._seconds = [[cost.seconds(kind) for kind in _ORDER] for cost in costs]
        self._bytes = [
            (cost.saved_bytes, cost.kept_for_weight - cost.saved_bytes, -cost.kept_for_weight)
            for cost in costs
        ]
        self._limits = limits or [float("inf")] * len(costs)
        self._count = micro_batches
        self._hop = hop
        self._choices = choices
        self._stages = range(len(costs))
        self._rows: list[list[Compute]] = [[] for _ in costs]
        self._ends: list[list[list[float]]] = [[[], [], []] for _ in costs]
        """Stage → kind → end of each micro-batch."""
        self._now = [0.0] * len(costs)
        self._kept = [0.0] * len(costs)
        self._idle = [0.0] * len(costs)

    @property
    def span(self) -> float:
        """Seconds of the longest rank, from its own first action to its last."""
        firsts = (self._ends[stage][0][0] - self._seconds[stage][0] for stage in self._stages)
        return max(now - first for now, first in zip(self._now, firsts, strict=True))

    def schedule(self) -> Schedule:
        """What was put together."""
        return Schedule(tuple(map(tuple, self._rows)), "zb-auto")

    def run(self) -> bool:
        """Whether everything could be placed within the limits."""
        for stage in self._stages:
            self._put(stage, 0)
        for stage, more in enumerate(self._warm_up()):
            for _ in range(more):
                self._put(stage, 0)
        for stage in reversed(self._stages):
            self._put(stage, 1)
        for _ in range(1, self._count):
            if not self._round():
                return False
        for stage in self._stages:
            while self._owed(stage):
                self._put(stage, 2)
        return all(kept <= limit for kept, limit in zip(self._kept, self._limits, strict=True))

    def _warm_up(self) -> list[int]:
        """Forwards more than one that each stage runs before its first input half can start."""
        more = [0] * len(self._stages)
        arrival = 0.0
        for stage in reversed(self._stages):
            forward, backward, _ = self._seconds[stage]
            now, kept = self._now[stage], self._kept[stage]
            if stage < len(self._stages) - 1:
                latest = arrival - forward if not self._choices.overrun else arrival
                while (
                    1 + more[stage] < self._count
                    and kept + self._bytes[stage][0] <= self._limits[stage]
                    and (now < latest if self._choices.overrun else now <= latest)
                ):
                    kept += self._bytes[stage][0]
                    now += forward
                    more[stage] += 1
            arrival = max(now, arrival) + backward + self._hop
        for stage in self._stages[1:]:
            # A stage cannot run what the one before it has not, and one less is enough.
            ahead = more[stage - 1] - (1 + more[stage] < self._count)
            more[stage] = max(0, min(more[stage], ahead))
        return more

    def _round(self) -> bool:
        """One forward, where it is due, and one input half of every stage; whether there is room."""
        for stage, due in enumerate(self._due()):
            if due:
                while self._kept[stage] + self._bytes[stage][0] > self._limits[stage]:
                    if not self._owed(stage):
                        return False
                    self._put(stage, 2)
                if stage:
                    at = len(self._ends[stage][0])
                    self._fill(stage, self._ends[stage - 1][0][at] + self._hop)
                self._put(stage, 0)
        for stage in reversed(self._stages):
            if stage < len(self._stages) - 1:
                self._fill(stage, self._ends[stage + 1][1][-1] + self._hop)
            if stage == 0 and len(self._ends[0][0]) == self._count:
                while self._owed(0):
                    self._put(0, 2)
            self._put(stage, 1)
        return True

    def _due(self) -> list[bool]:
        """Whether each stage runs a forward in this round: if the next does, and one is there."""
        due = [self._wants_forward(stage) for stage in self._stages]
        for stage in reversed(self._stages[:-1]):
            due[stage] = due[stage] and due[stage + 1]
        for stage in self._stages[1:]:
            there = len(self._ends[stage - 1][0]) + due[stage - 1]
            due[stage] = due[stage] and len(self._ends[stage][0]) < there
        return due

    def _wants_forward(self, stage: int) -> bool:
        ahead = len(self._ends[stage][0])
        if ahead >= self._count:
            return False
        if (
            not self._choices.backward_first
            or stage == len(self._stages) - 1
            or ahead < len(self._ends[stage + 1][0]) + 2
        ):
            return True
        now, later = self._now[stage], stage + 1
        gradient = self._now[later] + sum(self._seconds[later][:2]) + self._hop
        if now >= gradient:
            return False
        if now + self._seconds[stage][0] + self._making_room(stage) <= gradient:
            return True
        return gradient - now > max(self._idle) - self._idle[stage]

    def _making_room(self, stage: int) -> float:
        """Seconds of the weight halves that must run before the next forward has room."""
        kept, count = self._kept[stage] + self._bytes[stage][0], 0
        while kept > self._limits[stage] and count < self._owed(stage):
            kept += self._bytes[stage][2]
            count += 1
        return count * self._seconds[stage][2]

    def _fill(self, stage: int, arrival: float) -> None:
        """Run weight halves until a value arrives: those that fit, and perhaps one that does not."""
        while self._owed(stage) and self._now[stage] + self._seconds[stage][2] <= arrival:
            self._put(stage, 2)
        gap = arrival - self._now[stage]
        if self._owed(stage) and gap > 0:
            affordable = gap <= max(self._idle) - self._idle[stage]
            if not affordable or self._choices.fill:
                self._put(stage, 2)

    def _owed(self, stage: int) -> int:
        return len(self._ends[stage][1]) - len(self._ends[stage][2])

    def _put(self, stage: int, kind: int) -> None:
        """Append a stage's next action of a kind, as soon as it can start."""
        at, now = len(self._ends[stage][kind]), self._now[stage]
        source = stage + (-1, 1, 0)[kind]
        start = now
        if kind < 2 and 0 <= source < len(self._stages):
            start = max(now, self._ends[source][kind][at] + self._hop)
        if self._ends[stage][0]:
            self._idle[stage] += start - now
        self._now[stage] = start + self._seconds[stage][kind]
        self._ends[stage][kind].append(self._now[stage])
        self._kept[stage] += self._bytes[stage][kind]
        self._rows[stage].append(Compute(_ORDER[kind], stage, at))
