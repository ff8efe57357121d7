"""The schedule that the options of ``fxpipe schedule`` describe."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import typer

from fxpipe.cli.rank_cost import RankCost
from fxpipe.cli.schedules import read_schedule
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.cost import StageCost
from fxpipe.ir.plan import Placement
from fxpipe.ir.program import RankProgram
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.timeline import Timeline
from fxpipe.schedules.check import check
from fxpipe.schedules.forms import FORMS
from fxpipe.schedules.linear import chain_of
from fxpipe.schedules.links import check_programs
from fxpipe.schedules.lower import lower
from fxpipe.schedules.registry import SCHEDULES, Generator, resolve
from fxpipe.simulator.engine import simulate

RANKS, MICRO_BATCHES = 4, 8
FOLDS: Final = ("fold", "v", "zig-zag", "zigzag")
"""What a fold may be called."""


@dataclass(frozen=True)
class Counts:
    """Numbers as far as they are given.

    Attributes:
        ranks: number of ranks.
        micro_batches: number of micro-batches.
        stages: number of stages.
        placement: ``"loop"``, ``"fold"``, or ranks with commas.
    """

    ranks: int | None = None
    micro_batches: int | None = None
    stages: int | None = None
    placement: str | None = None

    @property
    def homes(self) -> tuple[int, ...]:
        """The ranks that the placement names, stage by stage; empty if it does not."""
        words = (self.placement or "").split(",")
        return tuple(int(word) for word in words if word.strip().isdecimal())

    @property
    def ranks_or_default(self) -> int:
        """What is given, or what the placement needs."""
        return self.ranks or (1 + max(self.homes) if self.homes else RANKS)

    @property
    def stages_if_told(self) -> int | None:
        """What is given, or what the placement has."""
        return self.stages or len(self.homes) or None

    @property
    def micro_batches_or_default(self) -> int:
        """What is given, or eight."""
        return self.micro_batches or MICRO_BATCHES


@dataclass(frozen=True)
class Chosen:
    """A legal schedule on a clock.

    Attributes:
        schedule: on a chain of stages.
        costs: of each stage.
        cost: of a rank.
        is_as_named: whether it is known to be what the generator of its name makes.
    """

    schedule: Schedule
    costs: tuple[StageCost, ...]
    cost: RankCost
    is_as_named: bool = False

    @property
    def stages_per_rank(self) -> float:
        """Stages that a micro-batch meets on a rank."""
        return self.schedule.num_stages / self.schedule.num_ranks

    @cached_property
    def programs(self) -> tuple[RankProgram, ...]:
        """What every rank does, transfers included."""
        return lower(self.schedule, chain_of(self.schedule))

    @cached_property
    def timeline(self) -> Timeline:
        """The step; times are in units, and a stage keeps one byte per micro-batch."""
        cluster = Cluster(self.schedule.num_ranks, self.cost.transfer)
        return simulate(self.programs, self.costs, cluster)

    @property
    def kept(self) -> tuple[float, ...]:
        """Per rank, the activations of all its stages that it keeps for backward at its peak."""
        return tuple(peak / self.stages_per_rank for peak in self.timeline.peak_bytes)

    def __str__(self) -> str:
        schedule = self.schedule
        stages, ranks = schedule.num_stages, schedule.num_ranks
        copies = f", {schedule.replicas} copies of each" if schedule.replicas > 1 else ""
        return (
            f"{schedule.name or 'schedule'}: {_count(ranks, 'rank')}, "
            f"{_count(stages, 'stage')}{copies}, "
            f"{_count(schedule.num_micro_batches, 'micro-batch')}"
        )


def choose(name: str, counts: Counts, cost: RankCost) -> Chosen:
    """The schedule of a name, a file or a function, at the counts asked for, checked.

    Raises:
        typer.BadParameter: if there is none, or it has no such placement.
        ScheduleError: if the counts are impossible, or the schedule is not legal.
    """
    found = read_schedule(name)
    schedule = _resolved(found, counts)
    check(schedule, chain_of(schedule))
    stage = cost.of_stage(schedule.num_stages, schedule.num_ranks)
    is_as_named = isinstance(found, str) and counts.placement is None
    chosen = Chosen(schedule, (stage,) * schedule.num_stages, cost, is_as_named)
    check_programs(chosen.programs)
    return chosen


def _resolved(found: str | Generator | Schedule, counts: Counts) -> Schedule:
    if isinstance(found, Schedule):
        if counts.placement is not None:
            raise typer.BadParameter("a schedule from a file says itself what runs on which rank")
        _require_counts(found, counts)
        return found
    ranks, micro_batches = counts.ranks_or_default, counts.micro_batches_or_default
    each = FORMS[found].stages_per_rank if isinstance(found, str) else 1
    each = max(each, 1 if counts.placement in (None, "loop") else 2)
    stages = counts.stages_if_told or each * ranks
    if counts.placement is None:
        return resolve(found, stages, ranks, micro_batches)
    return _placed(found, stages, ranks, micro_batches, counts.placement)


def _require_counts(schedule: Schedule, counts: Counts) -> None:
    for what, has, wanted in (
        ("ranks", schedule.num_ranks, counts.ranks),
        ("stages", schedule.num_stages, counts.stages),
        ("micro-batches", schedule.num_micro_batches, counts.micro_batches),
    ):
        if wanted not in (None, has):
            raise typer.BadParameter(f"schedule {schedule.name!r} has {has} {what}, not {wanted}")


def _placed(
    found: str | Generator, stages: int, ranks: int, micro_batches: int, placement: str
) -> Schedule:
    generator = SCHEDULES[found] if isinstance(found, str) else found
    if not _takes_placement(generator):
        able = ", ".join(name for name, one in SCHEDULES.items() if _takes_placement(one))
        what = found if isinstance(found, str) else "the function"
        raise typer.BadParameter(
            f"{what} decides itself what runs on which rank; a placement is taken by {able}"
        )
    where = read_placement(placement, stages, ranks)

    def made(stages: int, ranks: int, micro_batches: int) -> Schedule:
        schedule: Schedule = generator(stages, ranks, micro_batches, where)  # type: ignore[call-arg]
        return schedule

    return resolve(made, stages, ranks, micro_batches)


def _takes_placement(generator: Generator) -> bool:
    return "placement" in inspect.signature(generator).parameters


def read_placement(text: str, stages: int, ranks: int) -> Placement:
    """``loop``, ``fold`` (or ``v``, ``zig-zag``), or the rank of every stage: ``0,1,1,0``.

    Raises:
        typer.BadParameter: if it is none of these, or does not fit the counts.
    """
    match text.strip().casefold():
        case "loop":
            return Placement.round_robin(stages, ranks)
        case word if word in FOLDS:
            if stages % ranks:
                raise typer.BadParameter(f"a fold of {stages} stages does not fit {ranks} ranks")
            return Placement.fold(ranks, stages // ranks)
        case words:
            parts = [part.strip() for part in words.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(
            f"{text!r} is no placement: expected loop, fold (v, zig-zag), or the rank of every stage: "
            "0,1,1,0"
        )
    homes = tuple(map(int, parts))
    if len(homes) != stages or set(homes) != set(range(ranks)):
        raise typer.BadParameter(
            f"{text!r} has to name a rank for each of {stages} stages, and all of {ranks} ranks"
        )
    return Placement(homes)


def _count(number: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"
