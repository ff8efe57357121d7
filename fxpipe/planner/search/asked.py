"""What a search may be asked for, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from fxpipe.errors import ScheduleError
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.numbers import is_real, is_whole
from fxpipe.ir.plan import Placement
from fxpipe.planner.search.space import PLACEMENTS
from fxpipe.schedules.counts import require_placement


def limits_of(given: float | Sequence[float] | None, ranks: int, unit: int) -> tuple[float, ...]:
    """The limit of every rank in the unit in which bytes are counted.

    Raises:
        ScheduleError: if there are as many limits as other ranks have, or one is negative.
    """
    if given is None:
        return (math.inf,) * ranks
    limits = list(given) if isinstance(given, Sequence) else [given] * ranks
    if len(limits) != ranks:
        raise ScheduleError(f"memory limits of {len(limits)} ranks for {ranks}")
    if not min(limits) >= 0 or any(map(math.isnan, limits)):
        raise ScheduleError(f"a memory limit cannot be negative, got {given}")
    return tuple(float(limit * unit) for limit in limits)


def chunks_of(stages_per_rank: object) -> tuple[int, ...]:
    """The numbers of stages per rank to try: several, or a single one.

    Raises:
        ScheduleError: if there is none, or one is no number of stages.
    """
    wanted: list[object] = [stages_per_rank]
    if isinstance(stages_per_rank, Collection):
        wanted = list(stages_per_rank)
    found = [each for each in wanted if is_whole(each)]
    if not found or min(found) < 1 or len(found) < len(wanted):
        raise ScheduleError(
            "stages_per_rank is a number of stages, or several to try, such as (1, 2, 4); got "
            f"{stages_per_rank!r}"
        )
    return tuple(found)


def require_effort(seconds: object, steps: object) -> None:
    """Refuse times and numbers of steps that nothing can take.

    Raises:
        ScheduleError: naming it.
    """
    if not is_real(seconds) or not seconds >= 0:
        raise ScheduleError(f"seconds is the time to search for, 0 or more; got {seconds!r}")
    if not is_whole(steps) or steps < 0:
        raise ScheduleError(f"steps is a number of moves, 0 or more; got {steps!r}")


def require_ranks(cluster: Cluster, placements: object, ranks: int) -> None:
    """Refuse a cluster or placements that are not of these ranks.

    Raises:
        ScheduleError: naming what is wrong.
    """
    if cluster.ranks < ranks:
        raise ScheduleError(f"a cluster of {cluster.ranks} ranks for {ranks}")
    if placements is None:
        return
    if isinstance(placements, str) or not isinstance(placements, Sequence) or not placements:
        raise ScheduleError(
            f"placements is a list of those that the result may have, got {placements!r}; None: any"
        )
    for wish in placements:
        if isinstance(wish, Placement):
            require_placement(wish, len(wish.ranks), ranks)
        elif wish not in PLACEMENTS:
            raise ScheduleError(
                f"there is no placement {wish!r}; known are {', '.join(map(repr, PLACEMENTS))} (a V, or "
                "a zig-zag for more than two stages per rank), or a Placement of your own"
            )
