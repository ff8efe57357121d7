"""`Call`: the two halves of a differentiable call."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from fxpipe.errors import ExecutionError
from fxpipe.runtime.instructions import Executable
from fxpipe.runtime.since_forward import AsInForward
from fxpipe.runtime.step import Step
from fxpipe.runtime.values import Gradients

if TYPE_CHECKING:
    from fxpipe.runtime.runtime import Runtime


class Call:
    """The forwards of a batch, with what their backwards need; it is freed when this is dropped.

    Attributes:
        outputs: per micro-batch, the output leaves; ``requires_grad`` says which of their tensors
            can be given a gradient.
    """

    def __init__(self, runtime: Runtime, state: Step) -> None:
        self._runtime = runtime
        self._state: Step | None = state if state.keeps_graph else None
        self._found = _found(state)
        self.outputs: Sequence[Sequence[Any]] = state.outputs
        if not state.keeps_graph:
            state.frames = []

    def take_outputs(self) -> Sequence[Sequence[Any]]:
        """The outputs, which are not held any longer: only their gradient edges are."""
        outputs, self.outputs = self.outputs, ()
        if self._state is not None:
            self._state.outputs = []
        return outputs

    def backward(
        self,
        executable: Executable,
        output_grads: Sequence[Sequence[Gradients]],
        *,
        inputs_only: bool = False,
    ) -> Sequence[Sequence[Gradients]]:
        """Run the backwards: per micro-batch, the gradients of the placeholders.

        Args:
            executable: backwards only.
            output_grads: per micro-batch, a gradient or None for every output leaf.
            inputs_only: compute no parameter's gradient.

        Raises:
            ExecutionError: if they ran before, or nothing was kept for them; if weights have been
                changed since that a recomputation needs.
        """
        state, self._state = self._state, None
        if state is None:
            raise ExecutionError(
                "there is nothing to run backward through: it has run already, or the call was made "
                "without grad mode"
            )
        state.inputs_only = inputs_only
        state.output_grads = list(output_grads)
        try:
            with nullcontext() if self._found is None else self._found.again():
                self._runtime.launch(executable, state)
            return state.input_grads
        finally:
            state.drop()


def _found(state: Step) -> AsInForward | None:
    """What the caller must leave alone until the backward; None if no forward is run again."""
    stages, micro_batches = range(len(state.frames)), range(len(state.inputs))
    if not any(state.reruns(m, stage) for m in micro_batches for stage in stages):
        return None
    layouts = {id(layout): layout for layout in state.layouts}.values()
    programs = [program for layout in layouts for program in layout.programs]
    written = {name for program in programs for name in program.buffers}
    return AsInForward(state.layouts[0].model, written)
