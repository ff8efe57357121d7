"""Rank programs whose backwards run their forwards again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fxpipe.ir.action import Action, Compute, Kind
from fxpipe.ir.program import RankProgram

_FIRST = (Kind.BACKWARD, Kind.BACKWARD_INPUT)
"""The actions that need what a forward made."""


def with_reruns(
    programs: Sequence[RankProgram], reruns: Callable[[int], bool]
) -> tuple[RankProgram, ...]:
    """The programs as a pipeline with `recompute` runs them: a rerun begins when its backward does.

    By then all gradients are there: nothing is gained by a wait for them, as a recomputation of the
    schedule's own may (`fxpipe.schedules.insert.with_recomputes`). Where there is one, it stays alone.

    Args:
        programs: one per rank.
        reruns: micro-batch → whether its forwards keep only their inputs.
    """
    known = {action for p in programs for action in p.actions if _is(action, Kind.RECOMPUTE)}

    def actions(program: RankProgram) -> Iterator[Action]:
        for action in program.actions:
            if isinstance(action, Compute) and action.kind in _FIRST and reruns(action.micro_batch):
                again = Compute(Kind.RECOMPUTE, action.stage, action.micro_batch)
                if again not in known:
                    yield again
            yield action

    return tuple(RankProgram(program.rank, tuple(actions(program))) for program in programs)


def _is(action: Action, kind: Kind) -> bool:
    return isinstance(action, Compute) and action.kind is kind
