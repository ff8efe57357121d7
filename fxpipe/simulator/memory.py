"""Bytes kept for backward, per rank: they depend on the order of actions, not on their times."""

from __future__ import annotations

from collections.abc import Sequence

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.cost import StageCost
from fxpipe.ir.program import RankProgram

_LAST = (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)
"""The action after which nothing of a forward is needed."""


def peak_bytes(programs: Sequence[RankProgram], costs: Sequence[StageCost]) -> tuple[int, ...]:
    """The largest sum of bytes kept between forward and backward, per rank.

    A forward adds its stage's `StageCost.saved_bytes`; the full or the weight backward of the
    micro-batch takes them off again. Where a program has the backward without the forward they are
    kept from the start; where it has the forward alone nothing is kept.
    """
    return tuple(_peak(program, costs) for program in programs)


def _peak(program: RankProgram, costs: Sequence[StageCost]) -> int:
    actions = [action for action in program.actions if isinstance(action, Compute)]
    forwards = {(a.stage, a.micro_batch) for a in actions if a.kind is Kind.FORWARD}
    backwards = {(a.stage, a.micro_batch) for a in actions if a.kind in _LAST}
    now = sum(costs[stage].saved_bytes for stage, _ in backwards - forwards)
    peak = now
    for action in actions:
        if action.kind is Kind.FORWARD and (action.stage, action.micro_batch) in backwards:
            now += costs[action.stage].saved_bytes
            peak = max(peak, now)
        elif action.kind in _LAST:
            now -= costs[action.stage].saved_bytes
    return peak
