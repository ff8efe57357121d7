"""`StageRunner`: the forward and backward of one stage on one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from fxpipe.errors import ExecutionError
from fxpipe.ir.stage import HOST, StageProgram
from fxpipe.runtime.activations import Entry, Frame
from fxpipe.runtime.backward import Roots
from fxpipe.runtime.backward_draws import BackwardDraws
from fxpipe.runtime.caller_inputs import CallerInputs
from fxpipe.runtime.for_now import saved_for_now
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.model_result import ModelResult
from fxpipe.runtime.ports import Ports
from fxpipe.runtime.values import Edges, edges_of, seal
from fxpipe.runtime.weights import StageWeights

if TYPE_CHECKING:
    from fxpipe.runtime.step import Layout, Step


class StageRunner:
    """Runs one stage. What belongs to a step is kept in the step.

    Attributes:
        stage: its index.
        ports: where its values are found.
        lane: access to its device.
        weights: what it is bound to.
        layout: what all its steps have in common.
        reuses: whether its forward may use a weight more than once.
    """

    layout: Layout
    reuses = True

    def __init__(
        self,
        program: StageProgram,
        ports: Ports,
        weights: StageWeights,
        lane: Lane,
        *,
        is_last: bool,
        written: frozenset[str] = frozenset(),
        for_now: bool = True,
    ) -> None:
        """A runner.

        Args:
            program: the stage's.
            ports: where its values are found.
            weights: what it is bound to.
            lane: access to its device.
            is_last: whether it makes the model's outputs.
            written: the caller's tensors that the model writes into.
            for_now: whether graphs that a rerun makes again are kept for their forward only.
        """
        self.stage = program.stage
        self.program = program
        self.ports = ports
        self.weights = weights
        self.lane = lane
        self._from_caller = CallerInputs(ports, lane, program.stage, written)
        self._result = (
            ModelResult(self._from_caller, lane.device, weights.place) if is_last else None
        )
        self._draws = BackwardDraws(program.stage, ports)
        self._module = weights.module
        self._held = saved_for_now if for_now else nullcontext
        self._outputs = {name: at for at, name in enumerate(program.outputs)}
        # Asked for at every forward and backward, so looked up once.
        self._returns_writes = tuple(e.value for e in ports.writes) == program.outputs
        self._takes_reads = ports.arguments == tuple(range(len(ports.reads)))
        self._differentiable = tuple(edge.is_differentiable for edge in ports.writes)
        self._reads_first = tuple(
            (at, placeholder)
            for at, placeholder in ports.host
            if ports.reads[at].previous_holder(program.stage) == HOST
        )
        self._anchor = torch.zeros((), requires_grad=True)

    def new_frame(self) -> Frame:
        """An empty frame of this stage."""
        return Frame(len(self.ports.reads), len(self.ports.writes))

    # ---- forward ---------------------------------------------------------------------------------

    def forward(self, micro_batch: int, step: Step) -> None:
        """Run the forward: from `Frame.inputs` to `Frame.sends`, and keep what backward needs."""
        with self.weights.undisturbed():
            self._forward(micro_batch, step)

    def _forward(self, micro_batch: int, step: Step) -> None:
        frame = step.frames[self.stage][micro_batch]
        if self.ports.host:
            self._from_caller.read(frame, micro_batch, step)
        reruns = step.reruns(micro_batch, self.stage)
        frame.buffers = self.weights.begin(step, micro_batch, reruns=reruns)
        frame.replay = frame.buffers if reruns else None
        copies = self._from_caller.put_copies(frame) if self._from_caller.writes else ()
        if not step.keeps(micro_batch):
            self._forward_alone(frame, micro_batch, step)
        elif reruns:
            self._forward_to_rerun(frame, micro_batch, step)
        else:
            self._forward_with_graph(frame, micro_batch, step)
        if copies:
            self._from_caller.write_back(copies, micro_batch, step)

    def _forward_alone(self, frame: Frame, micro_batch: int, step: Step) -> None:
        """A forward without a backward."""
        values, frame.inputs = frame.inputs, []
        if step.keeps_graph:  # in grad mode: no leaf can be written into
            values = Entry(values, self._anchor).close()
        made, returned = self._call(values, step)
        frame.sends = [seal(value) for value in made]
        if self._result is not None:
            self._result.note(self.layout, frame, returned, micro_batch, step)

    def _forward_to_rerun(self, frame: Frame, micro_batch: int, step: Step) -> None:
        """A forward whose graph is thrown away: its inputs and buffers are kept instead.

        It runs in grad mode, as eager does: operators choose their kernels by it, and the numbers
        depend on the kernel. What the graph saves is held until the forward ends, for a model that
        differentiates inside its forward.
        """
        with self._held():
            values = Entry(frame.inputs, self._anchor).close()
            if self._from_caller.writes:
                self._from_caller.put_copies(
                    frame
                )  # the rerun's; what is in `values` is changed now
            frame.versions = self._from_caller.versions(frame)
            made, returned = self._call(values, step)
            frame.sends = [seal(value) for value in made]
            if self._result is not None:
                self._result.note(self.layout, frame, returned, micro_batch, step)
        frame.root = None
        frame.outputs = []

    def _forward_with_graph(self, frame: Frame, micro_batch: int, step: Step) -> None:
        entry = Entry(frame.inputs, self._anchor)
        frame.inputs = []
        values = entry.close()
        shared = self._edges_of_shared(values)
        made, returned = self._call(values, step)
        del values
        frame.entry = entry
        frame.sends = [seal(value) for value in made]
        frame.edges = self._edges(made, frame.sends)
        frame.edges.extend(shared)
        if self._result is not None:
            self._result.note(self.layout, frame, returned, micro_batch, step)

    def _edges_of_shared(self, values: list[Any]) -> list[Edges]:
        """For each value read that later stages read too, where their gradients come in."""
        shared = self.ports.shared
        if not shared:
            return []
        return [edges_of(v, v) if at in shared else None for at, v in enumerate(values)]

    def _edges(self, made: Sequence[Any], sealed: Sequence[Any]) -> list[Edges]:
        found = [edges_of(value, mark) for value, mark in zip(made, sealed, strict=True)]
        for at, (edges, expected) in enumerate(zip(found, self._differentiable, strict=True)):
            if edges is not None and not expected:
                raise ExecutionError(
                    f"the value {self.ports.writes[at].value!r} requires grad, and did not when the "
                    "model was recorded: the model decided on something that was not recorded"
                )
        return found

    def _call(self, values: list[Any], step: Step) -> tuple[Sequence[Any], tuple[Any, ...]]:
        """The values made, in order of the writes, and what the stage returned."""
        if step.left is None:
            return self._computed(values, step)
        attributes = self.weights.attributes
        attributes.before_forward()
        made = self._computed(values, step)
        attributes.after_forward(step.left)
        return made

    def _computed(self, values: list[Any], step: Step) -> tuple[Sequence[Any], tuple[Any, ...]]:
        ports = self.ports
        popped = {name: values[at] for name, at in ports.pops}
        stashed: dict[str, Any] = {}
        arguments = values if self._takes_reads else [values[at] for at in ports.arguments]
        if step.caller.autocasts:
            with step.caller.autocast(reuses=self.reuses):
                returned = self._module.forward(stashed.__setitem__, popped.pop, *arguments)
        else:
            returned = self._module.forward(stashed.__setitem__, popped.pop, *arguments)
        if self._returns_writes:
            return returned, returned
        at = self._outputs
        made = [
            stashed[edge.value] if edge.value in stashed else returned[at[edge.value]]
            for edge in ports.writes
        ]
        return made, returned

    # ---- backward --------------------------------------------------------------------------------

    def backward(self, micro_batch: int, step: Step) -> None:
        """Run the whole backward: from `Frame.later` to `Frame.handed`, and the weights' gradients."""
        self.backward_input(micro_batch, step)
        self.backward_weight(micro_batch, step)

    def backward_weight(self, micro_batch: int, step: Step) -> None:
        """Compute what `backward_input` has left: gradients of weights."""
        frame = step.frames[self.stage][micro_batch]
        due, frame.weights_due = frame.weights_due, None
        if due is not None and not step.inputs_only:
            due.run()

    def recompute(self, micro_batch: int, step: Step) -> None:
        """Run the forward again, ahead of the backward that needs its graph."""
        frame = step.frames[self.stage][micro_batch]
        if frame.replay is not None:
            with self.weights.again(step, micro_batch, frame.replay):
                self._rerun(frame, micro_batch, step)
            frame.replay = None

    def backward_input(self, micro_batch: int, step: Step) -> None:
        """Run the backward without the weights that the stage splits off."""
        frame = step.frames[self.stage][micro_batch]
        if self._has_work(frame, micro_batch, step):
            if frame.replay is not None:
                with self.weights.again(step, micro_batch, frame.replay):
                    self._rerun(frame, micro_batch, step)
            with self.weights.in_backward(step, micro_batch, frame.buffers):
                self._run_backward(frame, micro_batch, step)
        else:
            frame.handed = frame.later[len(self.ports.writes) :]
            self._draws.pass_on(step, micro_batch)
        for at, placeholder in self._reads_first:
            step.input_grads[micro_batch][placeholder] = frame.handed[at]
        frame.forget_graph()

    def _has_work(self, frame: Frame, micro_batch: int, step: Step) -> bool:
        """Whether any gradient is to be run back through this stage, and not only past it."""
        if self._result is not None:
            if step.loss is not None:
                return step.keeps(micro_batch)
            return any(grads is not None for grads in step.output_grads[micro_batch])
        return any(frame.later[at] is not None for at in range(len(self.ports.writes)))

    def _run_backward(self, frame: Frame, micro_batch: int, step: Step) -> None:
        starts = Roots()
        starts.add_all(frame.edges, frame.later)
        if frame.root is not None:
            assert step.loss is not None
            starts.add_loss(frame.root, step.loss.scale)
        if frame.outputs:
            grads = [self._from_caller.brought(grad) for grad in step.output_grads[micro_batch]]
            starts.add_all(frame.outputs, grads)
        with self._draws.keyed(step, micro_batch, starts.starts):
            starts.run(only=(self._anchor,) if step.inputs_only else ())
        entry = frame.entry
        assert entry is not None
        frame.handed = entry.gradients()

    def _rerun(self, frame: Frame, micro_batch: int, step: Step) -> None:
        self._from_caller.check_versions(frame)
        with torch.enable_grad():
            entry = Entry(frame.inputs, self._anchor)
            values = entry.close()
            shared = self._edges_of_shared(values)
            made, returned = self._call(values, step)
            frame.entry = entry
            frame.edges = self._edges(made, [seal(value) for value in made])
            frame.edges.extend(shared)
            if self._result is not None:
                self._result.note_again(self.layout, frame, returned, micro_batch, step)
