"""What makes a schedule legal: each result is made once, and before it is needed in some order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice

from fxpipe.errors import IllegalScheduleError
from fxpipe.ir.action import BACKWARDS, Compute, Kind, Update
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph
from fxpipe.schedules.depend import MAKES, Result
from fxpipe.schedules.layout import Layout, key_text, title_of
from fxpipe.schedules.numbers import without
from fxpipe.schedules.progress import finish

_LISTED = 40
"""Problems listed at most; a wrong generator breaks a rule thousands of times."""


def check(schedule: Schedule, graph: StageGraph, *, given: Collection[Result] = ()) -> None:
    """Nothing, if the ranks can run `schedule` on the stages of `graph`.

    Args:
        schedule: what every rank computes, in order.
        graph: the stages and the values between them.
        given: results that exist before the schedule starts, for all stages and micro-batches.

    Raises:
        IllegalScheduleError: if an action is missing, repeated, out of order or on a foreign rank;
            the message lists rank, position and action of each.
        DeadlockError: if the ranks wait for one another; the message says who waits for whom.
    """
    layout = Layout(schedule, graph)
    problems = [
        *_foreign(layout),
        *_repeated(layout),
        *_empty(layout),
        *islice(_missing(layout, given), _LISTED),
        *_late(layout),
        *_idle(layout),
        *_updates(layout),
    ]
    if problems:
        count = len(problems) + max(0, _count_missing(layout, given) - _LISTED)
        more = [f"… and {count - _LISTED} more"] if count > _LISTED else []
        lines = [f"  - {line}" for line in (*problems[:_LISTED], *more)]
        raise IllegalScheduleError("\n".join([f"{title_of(schedule)} cannot run:", *lines]))
    finish(layout, given)


def _foreign(layout: Layout) -> Iterator[str]:
    """Actions of stages that are not there, or that another rank runs."""
    stages, homes = layout.graph.num_stages, _homes(layout)
    home_of: dict[tuple[int, int], int] = {}
    for rank, position, action in layout.entries():
        where = layout.where(rank, position, action)
        if not 0 <= action.stage < stages:
            yield f"{where}: there is no stage {action.stage} of {stages}"
        elif rank not in homes[action.stage]:
            ranks = ", ".join(map(str, sorted(homes[action.stage])))
            yield f"{where}: stage {action.stage} is on rank {ranks}"
        else:
            home = home_of.setdefault((action.stage, action.micro_batch), rank)
            if home != rank:
                yield f"{where}: rank {home} runs stage {action.stage} for this micro-batch"


def _homes(layout: Layout) -> dict[int, list[int]]:
    """Stage → the ranks that run it: as many as there are copies, those with most of its actions."""
    counts: dict[int, Counter[int]] = {}
    for rank, _, action in layout.entries():
        counts.setdefault(action.stage, Counter())[rank] += 1
    copies = layout.schedule.replicas
    return {stage: [rank for rank, _ in of.most_common(copies)] for stage, of in counts.items()}


def _repeated(layout: Layout) -> Iterator[str]:
    """Results that are made again."""
    for rank, position, action, key in layout.repeats:
        first_rank, first = layout.makers[key]
        yield (
            f"{layout.where(rank, position, action)} makes the {key_text(key)} again: "
            f"rank {first_rank} does at position {layout.position(first_rank, first)}"
        )


def _empty(layout: Layout) -> Iterator[str]:
    """No action at all, or none of some micro-batch."""
    if not layout.makers:
        yield "it is empty"
    elif gap := without(layout.schedule, "micro-batch", lambda action: action.micro_batch):
        yield gap


def _missing(layout: Layout, given: Collection[Result]) -> Iterator[str]:
    """Results that nobody makes, of micro-batches that have an action."""
    home: dict[int, int] = {}
    home_for: dict[tuple[int, int], int] = {}
    for (_, stage, m), (rank, _) in layout.makers.items():
        home[stage] = home_for[stage, m] = rank
    expected = _expected(layout.schedule, given)
    for stage in range(layout.graph.num_stages) if expected else ():
        for m in _micro_batches(layout):
            lacking = tuple(one for one in expected if (one, stage, m) not in layout.makers)
            for kind in _makers_of(lacking):
                rank = home_for.get((stage, m), home.get(stage, -1))
                who = f"rank {rank}" if rank >= 0 else "every rank"
                results = " and ".join(one for one in MAKES[kind] if one in lacking)
                made = f"{results} of stage {stage}, micro-batch {m}"
                action = Compute(kind, stage, m)
                place = f"; it can stand from position {_first_place(layout, action, rank)} on"
                yield f"{who} lacks {action}, which makes the {made}{place if rank >= 0 else ''}"


def _first_place(layout: Layout, action: Compute, rank: int) -> int:
    """The position after all that an action needs of its own rank."""
    makers = (layout.makers.get(key) for key in layout.needs(action))
    before = (layout.position(*made) for made in makers if made is not None and made[0] == rank)
    return 1 + max(before, default=-1)


def _count_missing(layout: Layout, given: Collection[Result]) -> int:
    """How many lines `_missing` has. O(actions), however many there are."""
    expected = _expected(layout.schedule, given)
    made: dict[tuple[int, int], set[Result]] = {}
    for result, stage, m in layout.makers:
        made.setdefault((stage, m), set()).add(result)
    untouched = layout.graph.num_stages * len(_micro_batches(layout)) - len(made)
    every = sum(1 for _ in _makers_of(tuple(expected)))
    lacking = (tuple(one for one in expected if one not in found) for found in made.values())
    return untouched * every + sum(1 for each in lacking for _ in _makers_of(each))


def _micro_batches(layout: Layout) -> list[int]:
    """The micro-batches that have an action, in order."""
    return sorted({action.micro_batch for _, _, action in layout.entries()})


def _makers_of(lacking: tuple[Result, ...]) -> Iterator[Kind]:
    """The kinds of action that make what is lacking: the full backward if neither half is there."""
    if Result.OUTPUT in lacking:
        yield Kind.FORWARD
    if {Result.INPUT_GRAD, Result.WEIGHT_GRAD} <= {*lacking}:
        yield Kind.BACKWARD
    elif Result.INPUT_GRAD in lacking:
        yield Kind.BACKWARD_INPUT
    elif Result.WEIGHT_GRAD in lacking:
        yield Kind.BACKWARD_WEIGHT


def _expected(schedule: Schedule, given: Collection[Result]) -> list[Result]:
    wanted = [Result.OUTPUT]
    if schedule.has_backward:
        wanted += [Result.INPUT_GRAD, Result.WEIGHT_GRAD]
    return [result for result in wanted if result not in given]


def _late(layout: Layout) -> Iterator[str]:
    """Results that a rank makes after it needs them itself."""
    for rank, actions in enumerate(layout.schedule.computes):
        for at, action in enumerate(actions):
            for key in layout.needs(action):
                made = layout.makers.get(key)
                if made is not None and made[0] == rank and made[1] > at:
                    position, later = layout.position(rank, at), layout.position(*made)
                    where = f"at position {later}" if later > position else "in the same cell"
                    yield (
                        f"{layout.where(rank, position, action)} needs the {key_text(key)}, "
                        f"which the rank makes later, {where}"
                    )


def _idle(layout: Layout) -> Iterator[str]:
    """Recomputations that no backward reads."""
    if not layout.schedule.has_backward:  # if it has, what is missing of it is told
        for rank, position, action in layout.entries():
            if action.kind is Kind.RECOMPUTE:
                yield f"{layout.where(rank, position, action)}: no backward reads what it makes"


def _updates(layout: Layout) -> Iterator[str]:
    """Optimiser steps without gradients, that come twice, or before the last gradient of their stage."""
    for rank, cells in enumerate(layout.schedule.ranks):
        updates: dict[int, int] = {}
        own = {a.stage for a in layout.schedule.computes[rank] if _makes_weight_gradient(a)}
        for position, cell in enumerate(cells):
            if isinstance(cell, Update):
                if cell.stage not in own:
                    yield (
                        f"rank {rank}, position {position}: {cell}: the rank makes no gradients for "
                        f"the weights of stage {cell.stage}"
                    )
                if cell.stage in updates:
                    yield (
                        f"rank {rank}, position {position}: {cell} comes again: "
                        f"it stands at position {updates[cell.stage]}"
                    )
                updates.setdefault(cell.stage, position)
        for at, action in enumerate(layout.schedule.computes[rank] if updates else ()):
            position, update = layout.position(rank, at), updates.get(action.stage)
            if update is not None and position > update and _makes_weight_gradient(action):
                yield (
                    f"rank {rank}, position {update}: {action.stage}U comes before {action} at "
                    f"position {position}, which still adds to the gradient"
                )


def _makes_weight_gradient(action: Compute) -> bool:
    return action.kind in BACKWARDS and action.kind is not Kind.BACKWARD_INPUT
