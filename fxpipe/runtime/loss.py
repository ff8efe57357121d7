"""The loss of a micro-batch, on the last stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class LossTask:
    """What to differentiate in a step.

    Attributes:
        loss_fn: (output, target) → scalar; None: the output is the loss, or has one.
        targets: per micro-batch.
        weights: of each micro-batch's loss in the loss of the batch.
    """

    loss_fn: Callable[[Any, Any], Tensor] | None
    targets: Sequence[Any]
    weights: Sequence[float]

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
