"""What the last stage makes of the model's result: the loss, and what the caller gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from fxpipe.runtime.activations import Frame
from fxpipe.runtime.caller_inputs import CallerInputs
from fxpipe.runtime.leaves import Place
from fxpipe.runtime.loss_draws import LossDraws
from fxpipe.runtime.values import edges_of, seal

if TYPE_CHECKING:
    from fxpipe.runtime.step import Layout, Step


class ModelResult:
    """Ends the last stage's forward.

    Args:
        caller: brings the targets.
        device: of the stage.
        place: of the stage; copies of it draw for themselves.
    """

    def __init__(self, caller: CallerInputs, device: torch.device, place: Place) -> None:
        self._caller = caller
        self._device = device
        self._place = place

    def note(
        self, layout: Layout, frame: Frame, returned: tuple[Any, ...], micro_batch: int, step: Step
    ) -> None:
        """Compute the loss and keep loss and outputs for the caller; note where backward starts."""
        leaves = layout.output_leaves(returned)
        if step.loss is not None and step.loss.counts(micro_batch):
            loss = self._loss(layout, frame, leaves, micro_batch, step)
            step.losses[micro_batch] = loss.detach()
        sealed = [seal(leaf) for leaf in leaves]
        _note_outputs(frame, leaves, sealed, step)
        if step.keeps_output:
            step.outputs[micro_batch] = sealed

    def note_again(
        self, layout: Layout, frame: Frame, returned: tuple[Any, ...], micro_batch: int, step: Step
    ) -> None:
        """Note where backward starts: the forward has run again, and the caller has what it made."""
        leaves = layout.output_leaves(returned)
        if step.loss is not None:
            self._loss(layout, frame, leaves, micro_batch, step)
        _note_outputs(frame, leaves, [seal(leaf) for leaf in leaves], step)

    def _loss(
        self, layout: Layout, frame: Frame, leaves: list[Any], micro_batch: int, step: Step
    ) -> torch.Tensor:
        task = step.loss
        assert task is not None
        target = self._caller.brought(task.targets[micro_batch])
        output = layout.unflatten(leaves)
        watch = (
            nullcontext() if step.left is None else step.left.watched(self._place, [output, target])
        )
        with self._draws(frame, step), step.caller.autocast(reuses=True), watch:
            loss = task.loss(output, target)
        if step.keeps_graph:
            if not loss.requires_grad:
                raise ValueError(
                    "the loss does not depend on anything that requires grad: there is nothing "
                    "to run backward from"
                )
            frame.root = loss * task.weights[micro_batch]
        return loss

    @contextmanager
    def _draws(self, frame: Frame, step: Step) -> Iterator[None]:
        """Around the loss: computed again, it draws what it drew the first time."""
        if frame.replay is None or step.loss is None or step.loss.loss_fn is None:
            yield
            return
        draws = step.loss_draws.get(self._place)
        if draws is None:
            draws = LossDraws(step.loss.loss_fn, self._device)
            step.loss_draws[self._place] = draws
        if frame.loss_draws is not None:
            with draws.replayed(frame.loss_draws):
                yield
            return
        before = draws.begin()
        yield
        if draws.moved(before):
            frame.loss_draws = before


def _note_outputs(frame: Frame, leaves: list[Any], sealed: list[Any], step: Step) -> None:
    if step.loss is None and step.keeps_graph:
        frame.outputs = [edges_of(leaf, s) for leaf, s in zip(leaves, sealed, strict=True)]
