"""Numbers of stages and micro-batches that a schedule leaves out, whatever the largest one is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from fxpipe.errors import IllegalScheduleError
from fxpipe.ir.action import Compute, computes_of
from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.layout import title_of


def require_all_stages(schedule: Schedule) -> None:
    """Nothing, if every stage up to the last one has an action. O(actions).

    Whoever makes something of every stage asks first: a slip of the pen may be stage 10000000.

    Raises:
        IllegalScheduleError: naming the first stage that has none, and the action of the last.
    """
    problem = without(schedule, "stage", lambda action: action.stage)
    if problem:
        raise IllegalScheduleError(f"{title_of(schedule)} cannot run: {problem}")


def require_all_numbers(schedule: Schedule) -> None:
    """Nothing, if every stage up to the last one has an action, and every micro-batch too.

    Raises:
        IllegalScheduleError: naming the first that has none, and the action of the last.
    """
    require_all_stages(schedule)
    problem = without(schedule, "micro-batch", lambda action: action.micro_batch)
    if problem:
        raise IllegalScheduleError(f"{title_of(schedule)} cannot run: {problem}")


def without(schedule: Schedule, what: str, number_of: Callable[[Compute], int]) -> str:
    """Which numbers up to the largest have no action, in words; empty if all have. O(actions)."""
    numbers = {number_of(action) for rank in schedule.computes for action in rank}
    last = max(numbers, default=-1)
    lacking = last + 1 - len(numbers)
    if not lacking:
        return ""
    first = next(number for number in count() if number not in numbers)
    more = f" (nor of {lacking - 1} more)" if lacking > 1 else ""
    where = next(
        f"rank {rank}, position {position}: {cell}"
        for rank, cells in enumerate(schedule.ranks)
        for position, cell in enumerate(cells)
        if any(number_of(action) == last for action in computes_of(cell))
    )
    return f"{where} is of {what} {last}, and there is no action of {what} {first}{more}"
