"""Schedules by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Compute, computes_of
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.chimera import chimera
from fxpipe.schedules.counts import require_counts
from fxpipe.schedules.dualpipe import dualpipe
from fxpipe.schedules.dualpipe_v import dualpipe_v
from fxpipe.schedules.eager_1f1b import eager_1f1b
from fxpipe.schedules.forward_only import forward_only
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.hanayo import hanayo
from fxpipe.schedules.interleaved_1f1b import interleaved_1f1b
from fxpipe.schedules.interleaved_zb import interleaved_zb
from fxpipe.schedules.looped_bfs import looped_bfs
from fxpipe.schedules.one_f_one_b import one_f_one_b
from fxpipe.schedules.v_half import v_half
from fxpipe.schedules.v_min import v_min
from fxpipe.schedules.zb_h1 import zb_h1
from fxpipe.schedules.zb_h2 import zb_h2
from fxpipe.schedules.zb_v import zb_v

Generator: TypeAlias = Callable[[int, int, int], Schedule]
"""(stages, ranks, micro-batches) → the schedule."""

SCHEDULES: Final[Mapping[str, Generator]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager-1f1b": eager_1f1b,
    "interleaved-1f1b": interleaved_1f1b,
    "looped-bfs": looped_bfs,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
    "interleaved-zb": interleaved_zb,
    "dualpipe-v": dualpipe_v,
    "dualpipe": dualpipe,
    "chimera": chimera,
    "hanayo": hanayo,
    "forward": forward_only,
}


def resolve(
    schedule: str | Generator | Schedule, stages: int, ranks: int, micro_batches: int
) -> Schedule:
    """The schedule that a name, a generator or a fixed schedule stands for, at these counts.

    Raises:
        ScheduleError: if the name is not known, if the counts are impossible, if the function cannot
            be called with them, or if the schedule at hand has other counts.
    """
    require_counts(stages, ranks, micro_batches)
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise ScheduleError(
                f"there is no schedule {schedule!r}; known are {', '.join(sorted(SCHEDULES))} "
                "(a function of stages, ranks and micro-batches, or a Schedule, will do as well)"
            )
        schedule = SCHEDULES[schedule]
    made = (
        schedule
        if isinstance(schedule, Schedule)
        else _made(schedule, stages, ranks, micro_batches)
    )
    if not isinstance(made, Schedule):
        raise ScheduleError(f"{schedule!r} returned a {type(made).__name__}, not a Schedule")
    _require_fit(made, stages, ranks, micro_batches)
    return made


def _made(generator: Generator, *counts: int) -> object:
    """What a function makes of stages, ranks and micro-batches."""
    if not callable(generator):
        raise ScheduleError(
            f"{generator!r} is no name of a schedule, no Schedule, and no function that makes one"
        )
    try:
        inspect.signature(generator).bind(*counts)
    except TypeError as error:
        name = getattr(generator, "__qualname__", repr(generator))
        raise ScheduleError(
            f"{name} makes no schedule: it is called with three arguments, the numbers of stages, "
            f"ranks and micro-batches, here {counts} ({error})"
        ) from error
    except ValueError:  # Python does not know what some built-in functions take
        pass
    return generator(*counts)


def _require_fit(schedule: Schedule, stages: int, ranks: int, micro_batches: int) -> None:
    title = f"schedule {schedule.name!r}" if schedule.name else "the schedule"
    if not schedule.num_stages:
        raise ScheduleError(f"{title} is empty")
    counts = (
        ("stages", schedule.num_stages, stages, _first(schedule, lambda a: a.stage >= stages)),
        ("ranks", schedule.num_ranks, ranks, ""),
        (
            "micro-batches",
            schedule.num_micro_batches,
            micro_batches,
            _first(schedule, lambda a: a.micro_batch >= micro_batches),
        ),
    )
    wrong = [
        f"{has} {name} instead of {want}{where}" for name, has, want, where in counts if has != want
    ]
    if wrong:
        raise ScheduleError(f"{title} has {', '.join(wrong)}")


def _first(schedule: Schedule, beyond: Callable[[Compute], bool]) -> str:
    """Rank, position and action of the first that is beyond what there is."""
    for rank, cells in enumerate(schedule.ranks):
        for position, cell in enumerate(cells):
            if any(map(beyond, computes_of(cell))):
                return f" (rank {rank}, position {position}: {cell})"
    return ""
