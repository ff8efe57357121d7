"""`Outcome`: what a step gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fxpipe.ir.timeline import Timeline
from fxpipe.runtime.gather import weighted_loss
from fxpipe.runtime.step import Step
from fxpipe.runtime.values import Gradients


@dataclass(frozen=True)
class Outcome:
    """What a step gives.

    Attributes:
        loss: ``Σ w_i · loss_i``, added in ascending order; None if the step had no loss.
        outputs: per micro-batch, the model's output leaves; empty if they were not kept.
        input_grads: per micro-batch, the gradients of the placeholders.
        timeline: when what was computed.
    """

    loss: Tensor | None
    outputs: Sequence[Sequence[Any]]
    input_grads: Sequence[Sequence[Gradients]]
    timeline: Timeline


def outcome_of(step: Step) -> Outcome:
    """What a step has given, when all its ranks have ended."""
    return Outcome(
        loss=None if step.loss is None else weighted_loss(step.losses, step.loss.weights),
        outputs=step.outputs if step.keeps_output else (),
        input_grads=step.input_grads,
        timeline=step.record.timeline(),
    )
