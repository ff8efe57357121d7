"""The one dependency relation: what an action makes and what must exist before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, assert_never

from fxpipe.ir.action import Compute, Kind
from fxpipe.ir.stage import StageGraph


class Result(StrEnum):
    """What a computation leaves behind, per stage and micro-batch."""

    OUTPUT = "output"
    INPUT_GRAD = "input gradient"
    WEIGHT_GRAD = "weight gradient"
    ACTIVATIONS = "recomputed activations"
    """Made by a recomputation, where there is one; else the forward leaves them."""


MAKES: Final[Mapping[Kind, tuple[Result, ...]]] = {
    Kind.FORWARD: (Result.OUTPUT,),
    Kind.BACKWARD: (Result.INPUT_GRAD, Result.WEIGHT_GRAD),
    Kind.BACKWARD_INPUT: (Result.INPUT_GRAD,),
    Kind.BACKWARD_WEIGHT: (Result.WEIGHT_GRAD,),
    Kind.RECOMPUTE: (Result.ACTIVATIONS,),
}
"""Kind of action → the results it makes."""


def needs(
    action: Compute, graph: StageGraph, *, recomputed: bool = False
) -> Iterator[tuple[Result, int]]:
    """The results, each with its stage, that must exist for this micro-batch before `action` starts.

    Gradients come along the chains of readers: a stage waits for the next reader of every value that
    it makes or reads, so ``(INPUT_GRAD, s)`` stands for all the gradients stage ``s`` hands on.

    Args:
        action: any computation.
        graph: the stages and the values between them.
        recomputed: whether a recomputation makes the activations that the backward reads.
    """
    match action.kind:
        case Kind.FORWARD:
            yield from ((Result.OUTPUT, stage) for stage in graph.producers(action.stage))
        case Kind.RECOMPUTE:
            yield Result.OUTPUT, action.stage
        case Kind.BACKWARD | Kind.BACKWARD_INPUT:
            yield Result.OUTPUT, action.stage
            if recomputed:
                yield Result.ACTIVATIONS, action.stage
            yield from ((Result.INPUT_GRAD, stage) for stage in graph.consumers(action.stage))
        case Kind.BACKWARD_WEIGHT:
            yield Result.INPUT_GRAD, action.stage
        case _:
            assert_never(action.kind)
