"""What a rank's share of a model without a model costs, and the stages it is divided into."""

from __future__ import annotations

import math
from dataclasses import dataclass

import typer

from fxpipe.ir.cost import StageCost


@dataclass(frozen=True, slots=True)
class RankCost:
    """Times of all stages of one rank together, for one micro-batch.

    Attributes:
        forward: units of time.
        input: of the half of a backward that makes gradients of inputs.
        weight: of the half that makes gradients of weights.
        transfer: of a value on its way to another rank.
    """

    forward: float = 1.0
    input: float = 1.0
    weight: float = 1.0
    transfer: float = 0.0

    def of_stage(self, stages: int, ranks: int) -> StageCost:
        """The cost of one of `stages` equal stages; it keeps one byte per micro-batch."""
        share = ranks / stages
        backward = (self.input + self.weight) * share
        return StageCost(self.forward * share, backward, self.weight * share, saved_bytes=1)

    def __str__(self) -> str:
        hop = f", transfer {self.transfer:g}" if self.transfer else ""
        return f"F {self.forward:g}, I {self.input:g}, W {self.weight:g}{hop}"


def rank_cost(
    forward: float,
    input_half: float | None,
    weight_half: float | None,
    backward: float | None,
    transfer: float,
) -> RankCost:
    """Costs as options give them: a backward, or its halves; 1 each where nothing is said.

    Raises:
        typer.BadParameter: if a backward is given as well as both its halves, or a cost is negative,
            infinite or not a number.
    """
    if backward is not None and input_half is not None and weight_half is not None:
        raise typer.BadParameter("--backward is the sum of --input and --weight: give two of them")
    whole = 2.0 if backward is None else backward
    if backward is None:
        first = 1.0 if input_half is None else input_half
        second = 1.0 if weight_half is None else weight_half
    elif weight_half is not None:
        first, second = whole - weight_half, weight_half
    else:
        first = whole / 2 if input_half is None else input_half
        second = whole - first
    cost = RankCost(forward, first, second, transfer)
    times = (cost.forward, cost.input, cost.weight, cost.transfer)
    if not all(map(math.isfinite, times)):
        raise typer.BadParameter(f"costs have to be finite numbers, got {cost}")
    if min(times) < 0:
        raise typer.BadParameter(f"costs cannot be negative, got {cost}")
    if not cost.forward + cost.input + cost.weight:
        raise typer.BadParameter("something has to take time")
    return cost
