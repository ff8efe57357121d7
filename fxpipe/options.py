"""`Options`: everything a user chooses at `compile`, checked once at the edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from fxpipe.errors import ScheduleError
from fxpipe.ir.cost import CostProfile
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.split import Replicate, Split, SplitRule
from fxpipe.schedules.check import check
from fxpipe.schedules.forms import FORMS
from fxpipe.schedules.linear import linear
from fxpipe.schedules.numbers import require_all_stages
from fxpipe.schedules.registry import resolve

if TYPE_CHECKING:
    import torch

    from fxpipe.runtime.backend import Backend

ScheduleLike: TypeAlias = str | Schedule | Callable[[int, int, int], Schedule]
CutsLike: TypeAlias = Sequence[str] | PartitionPlan | None

RECOMPUTE: Final = ("never", "except_last", "always")
BATCH_NORM: Final = ("deferred", "per_micro_batch")
CAPTURE: Final = ("auto", "fake", "real")
COSTS: Final = ("measure", "estimate")
BACKENDS: Final = ("local", "inline")
MICRO_BATCHES_PER_RANK: Final = 4


@dataclass(frozen=True)
class Options:
    """The choices of one pipeline; see `fxpipe.compile` for what each means."""

    devices: tuple[torch.device, ...]
    chunks: int
    cuts: CutsLike = None
    split: Mapping[str, SplitRule] | None = None
    dynamic: Mapping[str, Mapping[int, str]] | None = None
    stages_per_rank: int | None = None
    schedule: ScheduleLike = "1f1b"
    recompute: str = "never"
    batch_norm: str = "deferred"
    capture: str = "auto"
    costs: str | CostProfile = "measure"
    backend: str | Backend = "local"
    threads_per_rank: int | None = None
    verify: bool = True
    seed: int | None = None
    max_recordings: int = 32
    max_variants: int = 16

    def __post_init__(self) -> None:
        _check_count("chunks", self.chunks)
        if self.stages_per_rank is not None:
            _check_count("stages_per_rank", self.stages_per_rank)
        if self.threads_per_rank is not None:
            _check_count("threads_per_rank", self.threads_per_rank)
        if self.seed is not None and (
            isinstance(self.seed, bool) or not isinstance(self.seed, int)
        ):
            raise TypeError(f"seed must be an int or None, got {self.seed!r}")
        _check_count("max_recordings", self.max_recordings)
        _check_count("max_variants", self.max_variants)
        _check_split(self.split)
        if self.dynamic is not None and not isinstance(self.dynamic, Mapping):
            raise TypeError(
                "dynamic must map inputs to names of dimensions, as in {'ids': {1: 'length'}}, got "
                f"{self.dynamic!r}"
            )
        _check_choice("recompute", self.recompute, RECOMPUTE)
        _check_choice("batch_norm", self.batch_norm, BATCH_NORM)
        _check_choice("capture", self.capture, CAPTURE)
        if not isinstance(self.costs, CostProfile):
            _check_choice("costs", self.costs, COSTS)
        if isinstance(self.backend, str):
            _check_choice("backend", self.backend, BACKENDS)
        if not (isinstance(self.schedule, str | Schedule) or callable(self.schedule)):
            raise TypeError(
                "schedule must be a name, a Schedule or a function of stages, ranks and "
                f"micro-batches, got {self.schedule!r}"
            )
        if isinstance(self.cuts, str):
            raise TypeError(
                f"cuts must be a list of names, got the single string {self.cuts!r}: "
                f"write cuts=[{self.cuts!r}]"
            )

    @property
    def num_stages(self) -> int:
        """Stages asked for, by a number, by cuts, or by the schedule, whichever says it first."""
        ranks = len(self.devices)
        if self.stages_per_rank is not None:
            return ranks * self.stages_per_rank
        if self.cuts is not None:
            cuts = self.cuts
            count = cuts.num_stages if isinstance(cuts, PartitionPlan) else 1 + len(cuts)
            if count % ranks == 0:
                return count
        return stages_for(self.schedule, ranks)

    @property
    def may_have_fewer_stages(self) -> bool:
        """Whether nobody has asked for that many stages, and one per rank would do."""
        told = self.stages_per_rank is not None or self.cuts is not None
        return not told and not isinstance(self.schedule, Schedule)


def stages_for(schedule: ScheduleLike, ranks: int) -> int:
    """The stages that a schedule has, or is made for."""
    if isinstance(schedule, Schedule):
        return schedule.num_stages
    known = FORMS.get(schedule) if isinstance(schedule, str) else None
    return ranks * (1 if known is None else known.stages_per_rank)


def chunks_for(schedule: ScheduleLike, ranks: int) -> int:
    """The micro-batches that a schedule has, or four per rank."""
    has = schedule.num_micro_batches if isinstance(schedule, Schedule) else 0
    return has or MICRO_BATCHES_PER_RANK * ranks


def check_schedule(options: Options) -> None:
    """Nothing, if there may be a pipeline with this schedule: what is known before the model is.

    Fixed schedules are tried on a chain of stages. Those with a name have the counts that matter; what
    functions make is not known yet.

    Raises:
        ScheduleError: if there is no such schedule, it has other counts, or cannot run.
    """
    schedule, ranks, stages = options.schedule, len(options.devices), options.num_stages
    if isinstance(schedule, str):
        resolve(schedule, stages, ranks, min(options.chunks, ranks))
    elif isinstance(schedule, Schedule):
        resolve(schedule, max(stages, ranks), ranks, options.chunks)
        try:
            require_all_stages(schedule)
            check(schedule, linear(stages))
        except ScheduleError as error:
            error.add_note(
                "(This was checked on a chain of stages, each reading the one before. Where a model has "
                "branches, a function that returns the schedule is checked on the model's own stages.)"
            )
            raise


def _check_split(split: object) -> None:
    if split is None:
        return
    if not isinstance(split, Mapping):
        raise TypeError(
            f"split must map names of inputs to fxpipe.Split or fxpipe.Replicate, got {split!r}"
        )
    for name, rule in split.items():
        if not isinstance(name, str) or not isinstance(rule, Split | Replicate):
            raise TypeError(
                "split maps names of inputs to fxpipe.Split(dim) or fxpipe.Replicate(), "
                f"got {name!r}: {rule!r}"
            )


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def _check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")
