"""The numbers every schedule generator takes, and what is wrong with them."""

from __future__ import annotations

from fxpipe.errors import ScheduleError, UnsupportedCountsError
from fxpipe.ir.numbers import is_whole
from fxpipe.ir.plan import Placement


def require_counts(stages: int, ranks: int, micro_batches: int) -> None:
    """Refuse counts that no schedule can have.

    Raises:
        ScheduleError: if a count is no whole number or below one, or a rank would have no stage.
    """
    for name, count in (("stages", stages), ("ranks", ranks), ("micro-batches", micro_batches)):
        if not is_whole(count):
            raise ScheduleError(f"the number of {name} must be a whole number, got {count!r}")
        if count < 1:
            raise ScheduleError(f"a schedule needs at least one of its {name}, got {count}")
    if ranks > stages:
        raise ScheduleError(
            f"{ranks} ranks for {stages} stages: a rank would have nothing to do; "
            f"use at most {stages} ranks or cut the model into more stages"
        )


def require_placement(placement: Placement, stages: int, ranks: int) -> None:
    """Refuse a placement that is none of these stages on these ranks.

    Raises:
        ScheduleError: if it has other stages or ranks, leaves a rank without, or has replicas.
    """
    if placement.replicas:
        raise ScheduleError(
            "a placement with replicas, for a schedule with one copy of every stage"
        )
    if len(placement.ranks) != stages:
        raise ScheduleError(f"a placement of {len(placement.ranks)} stages for {stages}")
    beyond = [rank for rank in placement.ranks if not 0 <= rank < ranks]
    if beyond:
        stage = placement.ranks.index(beyond[0])
        raise ScheduleError(
            f"the placement puts stage {stage} on rank {beyond[0]}, and there are {ranks} ranks"
        )
    without = set(range(ranks)) - set(placement.ranks)
    if without:
        raise ScheduleError(
            f"the placement leaves rank {min(without)} of {ranks} without a stage: {placement.ranks}"
        )


def require_even(name: str, ranks: int, instead: str) -> None:
    """Refuse an odd number of ranks, for schedules whose two directions mirror each other.

    Raises:
        UnsupportedCountsError: naming the count, its even neighbours, and the schedule to use instead.
    """
    if ranks % 2:
        evens = " or ".join(str(even) for even in (ranks - 1, ranks + 1) if even)
        raise UnsupportedCountsError(
            f"schedule {name!r} needs an even number of ranks, got {ranks}: "
            f"use {evens}, or {instead!r}, which runs on any number"
        )
