"""Bytes kept for backward, per rank: they depend on the order of actions, not on their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from fxpipe.errors import IllegalScheduleError
from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.cost import StageCost, with_reads
from fxpipe.ir.program import RankProgram
from fxpipe.ir.stage import StageGraph

_Work: TypeAlias = tuple[int, int]
"""Stage, micro-batch."""


def changes(actions: Sequence[Compute], costs: Sequence[StageCost]) -> tuple[int, list[_Change]]:
    """Bytes kept before a rank's first action, and (bytes more at its start, less at its end) of each.

    A forward adds its stage's `StageCost.saved_bytes`, or `input_bytes` if a recomputation will add the
    rest. A full backward takes all of them off again; of a split one, the input half leaves what the
    weight half needs (`kept_for_weight`). Where there is a backward without the forward they are kept
    from the start; where there is the forward alone nothing is kept.
    """
    forwards, backwards, split, recomputed = _halves(actions)
    before = sum(costs[stage].saved_bytes for stage, _ in backwards - forwards)
    found = []
    for action in actions:
        work = (action.stage, action.micro_batch)
        cost = costs[action.stage]
        first = cost.input_bytes if work in recomputed else cost.saved_bytes
        change = (0, 0)
        match action.kind:
            case Kind.FORWARD if work in backwards:
                change = (first, 0)
            case Kind.RECOMPUTE if work in backwards:
                change = (cost.saved_bytes - first, 0)
            case Kind.BACKWARD_INPUT if work in split:
                change = (0, cost.saved_bytes - cost.kept_for_weight)
            case Kind.BACKWARD_WEIGHT:
                change = (0, cost.kept_for_weight if work in split else cost.saved_bytes)
            case Kind.BACKWARD:
                change = (0, cost.saved_bytes)
        found.append(change)
    return before, found


_Change: TypeAlias = tuple[int, int]
"""Bytes more at the start, bytes less at the end."""


def _halves(
    actions: Sequence[Compute],
) -> tuple[set[_Work], set[_Work], set[_Work], set[_Work]]:
    """What is run forward, backward to the end, backward in two halves, and recomputed."""
    of: dict[Kind, set[_Work]] = {kind: set() for kind in Kind}
    for action in actions:
        of[action.kind].add((action.stage, action.micro_batch))
    backwards = of[Kind.BACKWARD] | of[Kind.BACKWARD_WEIGHT]
    split = of[Kind.BACKWARD_INPUT] & of[Kind.BACKWARD_WEIGHT]
    return of[Kind.FORWARD], backwards, split, of[Kind.RECOMPUTE]


def kept(actions: Sequence[Compute], costs: Sequence[StageCost]) -> Iterator[int]:
    """The bytes a rank keeps while it runs each of its actions."""
    now, found = changes(actions, costs)
    for more, less in found:
        now += more
        yield now
        now -= less


def check_memory(
    programs: Sequence[RankProgram],
    costs: Sequence[StageCost],
    limits: Sequence[int],
    graph: StageGraph | None = None,
) -> None:
    """Nothing, if no rank keeps more for backward than it may.

    Args:
        programs: one per rank.
        costs: per stage, for one micro-batch.
        limits: bytes, per rank.
        graph: says what recomputations start from, where `costs` do not (`input_bytes`).

    Raises:
        IllegalScheduleError: the message names, for each rank, position and action where it first
            keeps too much.
    """
    costs = with_reads(costs, graph)
    problems = []
    for program, limit in zip(programs, limits, strict=True):
        computes = [
            (position, action)
            for position, action in enumerate(program.actions)
            if isinstance(action, Compute)
        ]
        actions = [action for _, action in computes]
        for (position, action), now in zip(computes, kept(actions, costs), strict=True):
            if now > limit:
                problems.append(
                    f"  - rank {program.rank}, position {position}: {action} keeps {now} bytes "
                    f"for backward, and {limit} are allowed"
                )
                break
    if problems:
        raise IllegalScheduleError("\n".join(["too much is kept:", *problems]))
