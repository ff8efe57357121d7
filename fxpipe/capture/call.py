"""The call that is recorded: a model and its example arguments, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fxpipe.capture.axes import Axis, batch_axis, resized_along
from fxpipe.capture.batch import Batch
from fxpipe.capture.fallback import Decisions
from fxpipe.capture.formulas import Point
from fxpipe.capture.record import Recording, record_once
from fxpipe.capture.signature import Layout


@dataclass
class Call:
    """The model and its example arguments, taken apart.

    Attributes:
        batch: None if no input has rows.
        marked: the other dimensions that the recording leaves free.
    """

    model: nn.Module
    leaves: list[Any]
    layout: Layout
    batch: Batch | None
    marked: tuple[Axis, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All that may vary: the rows first, if there are any."""
        return self.marked if self.batch is None else (batch_axis(self.batch), *self.marked)

    @property
    def has_no_data(self) -> bool:
        """Whether the model or its inputs are on the meta device."""
        held = [*self.model.parameters(), *self.model.buffers(), *self.leaves]
        return any(isinstance(tensor, torch.Tensor) and tensor.is_meta for tensor in held)

    def recorded_once(
        self, decisions: Decisions, mode: str, runs: int, ahead: int = 0
    ) -> Recording:
        """A recording of the last of some runs on the example; see `record_once`."""
        given = self.model, self.leaves, self.layout, decisions, mode
        return record_once(*given, runs=runs, ahead=ahead)

    def leaves_at(self, point: Point) -> list[Any]:
        """The arguments' leaves with other sizes along the axes."""
        leaves = self.leaves
        for axis, size in zip(self.axes, point, strict=True):
            leaves = resized_along(leaves, axis, size)
        return leaves
