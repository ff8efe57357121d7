"""Tables of the literature beside the simulator's: one source of rows for the tests and for the page.

The simulator is given the costs that the tables were made with, and nothing else. Sources: GPipe
(arXiv 1811.06965), Megatron-LM (2104.04473), zero bubble (2401.10241), controllable memory (2405.15362),
DualPipe's and DualPipeV's official figures, Chimera (2107.06925). No torch is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fxpipe.ir.action import Action, Transfer
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.program import RankProgram
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.linear import linear
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES
from fxpipe.schedules.zb_auto import zb_auto
from fxpipe.simulator.engine import simulate
from fxpipe.simulator.metrics import bubble_fraction, device_span, device_span_bubble


def step(schedule: Schedule, costs: Sequence[StageCost], hop: float = 0.0) -> Timeline:
    """A step of a chain of stages."""
    programs = lower(schedule, linear(len(costs)))
    return simulate(programs, costs, Cluster(schedule.num_ranks, latency=hop))


# -- equal costs F = I = W = 1 of a rank, 4 ranks ------------------------------------------------------


@dataclass(frozen=True)
class FourRanks:
    """A schedule on four ranks.

    Attributes:
        name: the schedule's.
        per_rank: stages per rank.
        micro_batches: 8 or 16.
        makespan: of the step.
        bubble: idle time, as fraction of the makespan.
        span: of a rank from its first computation to its last.
        kept: the most that rank 0 keeps, in activations of all its stages for one micro-batch.
    """

    name: str
    per_rank: int
    micro_batches: int
    makespan: float
    bubble: float
    span: float
    kept: float

    def simulated(self) -> FourRanks:
        stages = 4 * self.per_rank
        cost = StageCost(1 / self.per_rank, 2 / self.per_rank, 1 / self.per_rank, saved_bytes=1)
        timeline = step(SCHEDULES[self.name](stages, 4, self.micro_batches), [cost] * stages)
        return FourRanks(
            self.name,
            self.per_rank,
            self.micro_batches,
            timeline.makespan,
            bubble_fraction(timeline),
            device_span(timeline),
            timeline.peak_bytes[0] / self.per_rank,
        )


FOUR_RANKS: Final = [
    FourRanks("gpipe", 1, 8, 33.0, 0.2727, 33.0, 8.0),
    FourRanks("1f1b", 1, 8, 33.0, 0.2727, 33.0, 4.0),
    FourRanks("interleaved-1f1b", 2, 8, 28.5, 0.1579, 28.5, 5.5),
    FourRanks("looped-bfs", 2, 8, 28.5, 0.1579, 28.5, 8.0),
    FourRanks("interleaved-zb", 2, 8, 25.5, 0.0588, 25.5, 4.0),
    FourRanks("zb-h1", 1, 8, 27.0, 0.1111, 27.0, 4.0),
    FourRanks("zb-h2", 1, 8, 27.0, 0.1111, 24.0, 7.0),
    FourRanks("zb-v", 2, 8, 25.5, 0.0588, 24.0, 4.0),
    FourRanks("v-half", 2, 8, 26.5, 0.0943, 26.5, 3.0),
    FourRanks("v-min", 2, 8, 29.5, 0.1864, 29.5, 2.0),
    FourRanks("dualpipe-v", 2, 8, 27.0, 0.1111, 27.0, 4.5),
    FourRanks("gpipe", 1, 16, 57.0, 0.1579, 57.0, 16.0),
    FourRanks("1f1b", 1, 16, 57.0, 0.1579, 57.0, 4.0),
    FourRanks("interleaved-1f1b", 2, 16, 52.5, 0.0857, 52.5, 5.5),
    FourRanks("looped-bfs", 2, 16, 52.5, 0.0857, 52.5, 16.0),
    FourRanks("interleaved-zb", 2, 16, 49.5, 0.0303, 49.5, 4.0),
    FourRanks("zb-h1", 1, 16, 51.0, 0.0588, 51.0, 4.0),
    FourRanks("zb-h2", 1, 16, 51.0, 0.0588, 48.0, 7.0),
    FourRanks("zb-v", 2, 16, 49.5, 0.0303, 48.0, 4.0),
    FourRanks("v-half", 2, 16, 50.5, 0.0495, 50.5, 3.0),
    FourRanks("v-min", 2, 16, 53.5, 0.1028, 53.5, 2.0),
    FourRanks("dualpipe-v", 2, 16, 51.0, 0.0588, 51.0, 4.5),
]


# -- unequal costs -------------------------------------------------------------------------------------

UNEQUAL: Final = [
    # F = 3, I = 4, W = 2 of a rank, 4 ranks: schedule, micro-batches, device span
    ("v-min", 8, 113.0),
    ("v-half", 8, 86.5),
    ("zb-v", 8, 78.0),
    ("v-min", 16, 209.0),
    ("v-half", 16, 158.5),
    ("zb-v", 16, 150.0),
]


def unequal(name: str, micro_batches: int) -> float:
    """The device span of a row of `UNEQUAL`."""
    return device_span(step(SCHEDULES[name](8, 4, micro_batches), [StageCost(1.5, 3.0, 1.0)] * 8))


UNLIKE: Final = [("gpipe", 39.75), ("1f1b", 36.75), ("zb-h1", 32.25), ("zb-h2", 31.00)]
"""Stages that differ, 6 micro-batches: schedule, makespan."""
UNLIKE_COSTS: Final = ((1, 2, 1.5, 1), (1, 2, 1.5, 1.25), (1, 1, 1, 0.5))
"""F, I, W of the four stages."""


def unlike(name: str) -> float:
    """The makespan of a row of `UNLIKE`."""
    costs = [StageCost(f, i + w, w) for f, i, w in zip(*UNLIKE_COSTS, strict=True)]
    return step(SCHEDULES[name](4, 4, 6), costs).makespan


# -- zero bubble, measured costs of GPT-like models in ms ----------------------------------------------


@dataclass(frozen=True)
class Measured:
    """A row of the zero-bubble paper's table: costs in ms, and bubbles of the device span.

    Attributes:
        model: its parameters.
        ranks: number of ranks.
        micro_batches: number of micro-batches.
        f: forward of a rank.
        i: input half of its backward.
        w: weight half of its backward.
        hop: of a transfer.
        bubbles: of 1F1B, ZB-H1, ZB-H2, ZB-1p, ZB-2p.
        interleaved: bubble of interleaved 1F1B, three stages per rank.
    """

    model: str
    ranks: int
    micro_batches: int
    f: float
    i: float
    w: float
    hop: float
    bubbles: tuple[float, ...]
    interleaved: float

    def __str__(self) -> str:
        return f"{self.ranks} ranks, {self.micro_batches} micro-batches"

    def simulated(self, column: int) -> float:
        """A bubble: of `COLUMNS`."""
        costs = [self._cost()] * self.ranks
        schedule = _MAKERS[column](costs, self.micro_batches, self.hop)
        return device_span_bubble(step(schedule, costs, self.hop))

    def simulated_speed(self) -> float:
        """Of ZB-2p over 1F1B."""
        return (1 - self.simulated(4)) / (1 - self.simulated(0))

    def _cost(self) -> StageCost:
        """Activations per token of a layer: 34 h + 5 a s bytes, of which the weight half needs 32 h."""
        hidden, heads, tokens = (2304, 24, 1024) if self.ranks == 8 else (5120, 40, 1024)
        saved, needed = 34 * hidden + 5 * heads * tokens, 32 * hidden
        return StageCost(self.f, self.i + self.w, self.w, saved_bytes=saved, weight_bytes=needed)

    def simulated_interleaved(self, as_published: bool) -> Timeline:
        """Three stages per rank.

        Args:
            as_published: only the first micro-batch of a round waits for a value that wraps around.
        """
        v, p = INTERLEAVED, self.ranks
        cost = StageCost(self.f / v, (self.i + self.w) / v, self.w / v)
        schedule = SCHEDULES["interleaved-1f1b"](v * p, p, self.micro_batches)
        programs = lower(schedule, linear(v * p))
        if as_published:
            programs = tuple(_first_of_round_waits(one, p) for one in programs)
        return simulate(programs, [cost] * (v * p), Cluster(p, latency=self.hop))


INTERLEAVED: Final = 3
"""Stages per rank of the interleaved column."""

MEASURED: Final = [
    Measured(
        *("1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601),
        (0.2431, 0.1585, 0.1083, 0.1585, 0.0433),
        0.1055,
    ),
    Measured(
        *("1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626),
        (0.1985, 0.1242, 0.0837, 0.1242, 0.0039),
        0.0818,
    ),
    Measured(
        *("1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762),
        (0.1240, 0.0674, 0.0444, 0.0674, 0.0026),
        0.0443,
    ),
    Measured(
        *("14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377),
        (0.2552, 0.1397, 0.0672, 0.1397, 0.0066),
        0.1104,
    ),
    Measured(
        *("14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379),
        (0.2082, 0.1088, 0.0516, 0.1088, 0.0054),
        0.0852,
    ),
    Measured(
        *("14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378),
        (0.1251, 0.0576, 0.0266, 0.0576, 0.0028),
        0.0445,
    ),
]

COLUMNS: Final = ("1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")
RATIOS: Final = [(MEASURED[0], 1.23), (MEASURED[3], 1.29)]
"""Rows, and the measured speed of ZB-2p over 1F1B."""


def _zero_bubble(factor: int) -> Callable[[Sequence[StageCost], int, float], Schedule]:
    def made(costs: Sequence[StageCost], m: int, hop: float) -> Schedule:
        limits = [factor * len(costs) * cost.saved_bytes for cost in costs]
        return zb_auto(costs, m, hop=hop, limits=limits)

    return made


def _named(name: str) -> Callable[[Sequence[StageCost], int, float], Schedule]:
    return lambda costs, m, hop: SCHEDULES[name](len(costs), len(costs), m)


_MAKERS: Final = (
    *(_named("1f1b"), _named("zb-h1"), _named("zb-h2")),
    *(_zero_bubble(1), _zero_bubble(2)),
)


def _first_of_round_waits(program: RankProgram, ranks: int) -> RankProgram:
    """The program without the wrapping transfers of all micro-batches but the first of every round."""

    def counted(action: Action) -> bool:
        if not isinstance(action, Transfer):
            return True
        wraps = {action.source % ranks, action.target % ranks} == {0, ranks - 1}
        return not wraps or action.micro_batch % ranks == 0

    return RankProgram(program.rank, tuple(filter(counted, program.actions)))


# -- two directions ------------------------------------------------------------------------------------

DUALPIPE: Final = [("dualpipe", 8, 8, 20, 66, 6), ("dualpipe-v", 8, 4, 10, 66, 6)]
"""Schedule, stages, ranks, micro-batches; slots of the step, idle ones of every rank."""
CHIMERA: Final = range(4, 17, 2)
"""Ranks, as many micro-batches, F = B."""


def dualpipe(name: str, stages: int, ranks: int, micro_batches: int) -> tuple[float, set[float]]:
    """Slots of the step, idle ones of the ranks."""
    timeline = step(SCHEDULES[name](stages, ranks, micro_batches), [StageCost(1, 2, 1)] * stages)
    return timeline.makespan, {timeline.makespan - timeline.busy(rank) for rank in range(ranks)}


def chimera(ranks: int) -> tuple[float, float]:
    """Bubble of Chimera: the paper's closed form, and simulated."""
    timeline = step(SCHEDULES["chimera"](ranks, ranks, ranks), [StageCost(1, 1)] * ranks)
    return (ranks - 2) / (3 * ranks - 2), bubble_fraction(timeline)
