"""What the caller gave, as one stage reads it: model inputs, targets, gradients of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from fxpipe.errors import ExecutionError
from fxpipe.runtime.activations import Frame
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.ports import Ports
from fxpipe.runtime.values import map_tensors, tensors_in

if TYPE_CHECKING:
    from fxpipe.runtime.step import Step

Copies: TypeAlias = Sequence[tuple[int, Tensor]]
"""Placeholder, and the copy that a stage writes into in place of the caller's tensor."""


class CallerInputs:
    """Brings the caller's tensors to one stage.

    Args:
        ports: where the stage's values are found.
        lane: access to its device.
        stage: its index.
        written: the caller's tensors that the model writes into.

    Attributes:
        writes: whether this stage is the first to write into some of them.
    """

    def __init__(self, ports: Ports, lane: Lane, stage: int, written: frozenset[str]) -> None:
        self._ports = ports
        self._lane = lane
        self._written = tuple(
            (at, placeholder)
            for at, placeholder in ports.host
            if ports.reads[at].value in written and ports.reads[at].consumers[0] == stage
        )
        self.writes = bool(self._written)

    def read(self, frame: Frame, micro_batch: int, step: Step) -> None:
        """Put the model inputs that the stage reads into its frame."""
        inputs = step.inputs[micro_batch]
        for at, placeholder in self._ports.host:
            given = step.originals.get(placeholder, inputs[placeholder])
            frame.inputs[at] = self.brought(given)

    def brought(self, value: Any) -> Any:
        """What the caller gave, readable on this stage's device; its marks are kept."""
        if self._lane.is_synchronous:
            return value
        arrived = iter(self._lane.from_caller([tensor.detach() for tensor in tensors_in(value)]))
        return map_tensors(value, lambda t: next(arrived).detach().requires_grad_(t.requires_grad))

    # ---- inputs that the model writes into -------------------------------------------------------

    def put_copies(self, frame: Frame) -> Copies:
        """Put copies in place of inputs that the forward writes into.

        Eager differentiates a micro-batch before the next one is there. Here the next one comes
        first, and would write into what this one's graph has saved.
        """
        copies = []
        for at, placeholder in self._written:
            given = frame.inputs[at]
            copy = frame.inputs[at] = given.detach().clone().requires_grad_(given.requires_grad)
            copies.append((placeholder, copy))
        return copies

    def write_back(self, copies: Copies, micro_batch: int, step: Step) -> None:
        """Leave the caller's tensors as the forward has left the copies."""
        for placeholder, copy in copies:
            # What all micro-batches share is left as the last one leaves it, whoever comes last.
            if placeholder not in step.originals or micro_batch == len(step.inputs) - 1:
                # No new version of the caller's tensor: its other micro-batches have not been changed.
                step.inputs[micro_batch][placeholder].data.copy_(copy.detach())

    # ---- inputs that are read once more ----------------------------------------------------------

    def versions(self, frame: Frame) -> list[int]:
        """Of the caller's tensors: how often they have been written into."""
        return [
            0 if frame.inputs[at].is_inference() else frame.inputs[at]._version
            for at, _ in self._ports.host
        ]

    def check_versions(self, frame: Frame) -> None:
        """Check that a forward which runs again reads what it read.

        Raises:
            ExecutionError: if the caller has written into an input since.
        """
        for (at, _), before, now in zip(
            self._ports.host, frame.versions, self.versions(frame), strict=True
        ):
            if before != now:
                raise ExecutionError(
                    f"the input {self._ports.reads[at].value!r} has been changed in place since the "
                    "forward: with recompute= its values are needed until the backward. Give the "
                    "pipeline a copy (tensor.clone()), or change the tensor after the backward"
                )
