"""The loss of a micro-batch, on the last stage; and its weight in the loss of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, Literal, TypeAlias

from torch import Tensor

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of the model."""

Weigh: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any], Any], "float | Tensor"]
"""(args, kwargs, target) of a micro-batch → how much of the batch it stands for."""

_RULE: Final = (
    "weights must be 'samples', 'sum', a function of args, kwargs and target, or one number per "
    "micro-batch"
)

Weights: TypeAlias = Literal["samples", "sum"] | Weigh | Sequence[float] | Tensor


@dataclass(frozen=True)
class LossTask:
    """What to differentiate in a step.

    A micro-batch of weight 0 is left out: its forward runs, its loss is not looked at, and nothing is
    run backward.

    Attributes:
        loss_fn: (output, target) → scalar; None: the output is the loss, or has one.
        targets: per micro-batch.
        weights: of each micro-batch's loss in the loss of the batch.
        scale: of all gradients; the loss is told without it.
    """

    loss_fn: Callable[[Any, Any], Tensor] | None
    targets: Sequence[Any]
    weights: Sequence[float]
    scale: float = 1.0

    def counts(self, micro_batch: int) -> bool:
        """Whether a micro-batch has a part in the loss."""
        return self.weights[micro_batch] != 0

    def loss(self, output: Any, target: Any) -> Tensor:
        """The loss of one micro-batch, not weighted.

        Raises:
            ValueError: if it is no floating scalar, or the output has none.
        """
        found: Any
        if self.loss_fn is not None:
            found = self.loss_fn(output, target)
            source = "loss_fn returned"
        else:
            found = _own_loss(output)
            source = "without loss_fn the output must be the loss or have one; found"
        if not isinstance(found, Tensor) or found.numel() != 1 or not found.is_floating_point():
            raise ValueError(f"{source} {_describe(found)}: a loss is a floating-point scalar")
        return found


def _own_loss(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    return getattr(output, "loss", None)


def _describe(found: Any) -> str:
    if isinstance(found, Tensor):
        return f"a tensor of shape {tuple(found.shape)} and {found.dtype}"
    return f"{type(found).__name__}"


def loss_weights(
    weights: Weights,
    rows: Sequence[int],
    calls: Callable[[], Iterable[Call]],
    targets: Sequence[Any],
) -> tuple[float, ...]:
    """The weight of each micro-batch's loss in the loss of the batch.

    Args:
        weights: ``"samples"``: the micro-batch's share of the rows, for a loss that is a mean over
            rows; ``"sum"``: 1, for a loss that is a sum; a function of the micro-batch's arguments
            and target that says what it stands for (its labels that are not ignored, say): its share
            of the sum of these; or the weights themselves, one per micro-batch.
        rows: of each micro-batch.
        calls: gives the arguments of each micro-batch; asked for a function only.
        targets: of each micro-batch.

    Raises:
        ValueError: if there is no such rule, the weights are not one finite number per micro-batch,
            those of a function are negative, or none is other than 0.
    """
    if isinstance(weights, str):
        match weights:
            case "samples":
                return tuple(n / sum(rows) for n in rows)
            case "sum":
                return (1.0,) * len(rows)
            case _:
                raise ValueError(f"{_RULE}, got {weights!r}")
    if callable(weights) and not isinstance(weights, Tensor):
        pairs = zip(calls(), targets, strict=True)
        found = [_number(weights(*call, target), "weights returned") for call, target in pairs]
        if min(found) < 0:
            raise ValueError(f"weights returned a negative number: {found}")
        _require_some(found)
        return tuple(weight / sum(found) for weight in found)
    if not isinstance(weights, Iterable):
        raise ValueError(f"{_RULE}, got {weights!r}")
    told = [_number(weight, "weights has") for weight in weights]
    if len(told) != len(rows):
        raise ValueError(f"{len(told)} weights are given for {len(rows)} micro-batches")
    _require_some(told)
    return tuple(told)


def _number(value: Any, source: str) -> float:
    if not (isinstance(value, Tensor) and value.numel() == 1) and not isinstance(value, Real):
        raise ValueError(f"{source} {_describe(value)}: a weight is one number per micro-batch")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{source} {number}: a weight is a finite number")
    return number


def _require_some(weights: Sequence[float]) -> None:
    if not any(weights):
        raise ValueError(
            "the weights of all micro-batches are 0: there is nothing to learn from in this batch. "
            "Leave it out"
        )
