"""`StageRunner`: the forward and backward of one stage on one micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxpipe.errors import ExecutionError, InternalError
from fxpipe.ir.stage import HOST, Edge, StageGraph, StageProgram
from fxpipe.runtime.activations import Entry, Frame
from fxpipe.runtime.backward import Roots
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.values import (
    Edges,
    edges_of,
    map_tensors,
    seal,
    seal_as,
    tensors_in,
    wanted_gradients,
)
from fxpipe.runtime.weights import StageWeights

if TYPE_CHECKING:
    from fxpipe.runtime.step import Layout, Step


@dataclass(frozen=True)
class Ports:
    """Where a stage's values are found: positions among its reads and its writes."""

    reads: tuple[Edge, ...]
    writes: tuple[Edge, ...]
    arguments: tuple[int, ...]
    """Position among the reads of each argument of the stage's forward."""
    pops: tuple[tuple[str, int], ...]
    host: tuple[tuple[int, int], ...]
    """(position among the reads, placeholder) of the values that come from the caller."""
    shared: tuple[int, ...]
    """Positions of the reads that later stages read too."""

    @classmethod
    def of(cls, program: StageProgram, graph: StageGraph, placeholders: Sequence[str]) -> Ports:
        """The ports of a stage.

        Raises:
            InternalError: if the program and the graph speak of different values.
        """
        stage = program.stage
        reads, writes = graph.reads(stage), graph.writes(stage)
        at = {edge.value: position for position, edge in enumerate(reads)}
        made = {*program.outputs, *program.stashes}
        if at.keys() != {*program.inputs, *program.pops} or not made.issuperset(
            edge.value for edge in writes
        ):
            raise InternalError(f"the program of stage {stage} does not fit the stage graph")
        return cls(
            reads=reads,
            writes=writes,
            arguments=tuple(at[name] for name in program.inputs),
            pops=tuple((name, at[name]) for name in program.pops),
            host=tuple(
                (at[edge.value], placeholders.index(edge.value))
                for edge in reads
                if edge.producer == HOST
            ),
            shared=tuple(
                position
                for position, edge in enumerate(reads)
                if edge.next_reader(stage) is not None and edge.is_differentiable
            ),
        )

    def later_slot(self, value: str) -> int:
        """Where in `Frame.later` the gradient of a value's later readers belongs."""
        for position, edge in enumerate(self.writes):
            if edge.value == value:
                return position
        return len(self.writes) + self.read_slot(value)

    def read_slot(self, value: str) -> int:
        """Position of a value among the reads."""
        return next(at for at, edge in enumerate(self.reads) if edge.value == value)

    def write_slot(self, value: str) -> int:
        """Position of a value among the writes."""
        return next(at for at, edge in enumerate(self.writes) if edge.value == value)


class StageRunner:
    """Runs one stage. What belongs to a step is kept in the step.

    Attributes:
        stage: its index.
        ports: where its values are found.
        lane: access to its device.
        weights: what it is bound to.
        layout: what all its steps have in common.
    """

    layout: Layout

    def __init__(
        self,
        program: StageProgram,
        ports: Ports,
        weights: StageWeights,
        lane: Lane,
        *,
        is_last: bool,
    ) -> None:
        self.stage = program.stage
        self.program = program
        self.ports = ports
        self.weights = weights
        self.lane = lane
        self._is_last = is_last
        self._module = weights.module
        self._outputs = {name: at for at, name in enumerate(program.outputs)}
        self._returns_writes = tuple(e.value for e in ports.writes) == program.outputs
        self._wants = tuple(wanted_gradients(edge.spec) for edge in ports.writes)
        self._anchor = torch.zeros((), requires_grad=True)

    def new_frame(self) -> Frame:
        """An empty frame of this stage."""
        return Frame(len(self.ports.reads), len(self.ports.writes))

    # ---- forward ---------------------------------------------------------------------------------

    def forward(self, micro_batch: int, step: Step) -> None:
        """Run the forward: from `Frame.inputs` to `Frame.sends`, and keep what backward needs."""
        frame = step.frames[self.stage][micro_batch]
        self._read_host(frame, micro_batch, step)
        if not step.keeps_graph:
            made, returned = self._call(frame.inputs, micro_batch, step, is_rerun=False)
            frame.inputs = []
            frame.sends = [seal(value) for value in made]
            if self._is_last:
                self._finish(frame, returned, micro_batch, step, is_rerun=False)
        elif step.reruns(micro_batch):
            frame.replay = self.weights.changed.copies()
            with torch.no_grad():
                made, returned = self._call(frame.inputs, micro_batch, step, is_rerun=False)
                frame.sends = [
                    seal_as(value, wants) for value, wants in zip(made, self._wants, strict=True)
                ]
                if self._is_last:
                    self._finish(frame, returned, micro_batch, step, is_rerun=False)
        else:
            self._forward_with_graph(frame, micro_batch, step)

    def _read_host(self, frame: Frame, micro_batch: int, step: Step) -> None:
        inputs = step.inputs[micro_batch]
        for at, placeholder in self.ports.host:
            frame.inputs[at] = self._of_caller(inputs[placeholder])

    def _of_caller(self, value: Any) -> Any:
        """What the caller gave, readable on this stage's device; its marks are kept."""
        if self.lane.is_synchronous:
            return value
        arrived = iter(self.lane.from_caller([tensor.detach() for tensor in tensors_in(value)]))
        return map_tensors(value, lambda t: next(arrived).detach().requires_grad_(t.requires_grad))

    def _forward_with_graph(self, frame: Frame, micro_batch: int, step: Step) -> None:
        entry = Entry(frame.inputs, self._anchor)
        frame.inputs = []
        values = entry.close()
        shared = {at: edges_of(values[at], values[at]) for at in self.ports.shared}
        made, returned = self._call(values, micro_batch, step, is_rerun=False)
        del values
        frame.entry = entry
        frame.sends = [seal(value) for value in made]
        frame.edges = self._edges(made, frame.sends, shared)
        if self._is_last:
            self._finish(frame, returned, micro_batch, step, is_rerun=False)

    def _edges(self, made: list[Any], sealed: list[Any], shared: dict[int, Edges]) -> list[Edges]:
        edges: list[Edges] = []
        for edge, value, mark in zip(self.ports.writes, made, sealed, strict=True):
            found = edges_of(value, mark)
            if found is not None and not edge.is_differentiable:
                raise ExecutionError(
                    f"the value {edge.value!r} requires grad, and did not when the model was "
                    "recorded: the model decided on something that was not recorded"
                )
            edges.append(found)
        if shared:
            edges.extend(shared.get(at) for at in range(len(self.ports.reads)))
        return edges

    def _call(
        self, values: list[Any], micro_batch: int, step: Step, *, is_rerun: bool
    ) -> tuple[list[Any], tuple[Any, ...]]:
        """The values made, in order of the writes, and what the stage returned."""
        self.weights.begin(step, micro_batch, is_rerun=is_rerun)
        ports = self.ports
        popped = {name: values[at] for name, at in ports.pops}
        stashed: dict[str, Any] = {}
        arguments = [values[at] for at in ports.arguments]
        if step.caller.autocasts:
            with step.caller.autocast():
                returned = self._module.forward(stashed.__setitem__, popped.pop, *arguments)
        else:
            returned = self._module.forward(stashed.__setitem__, popped.pop, *arguments)
        if self._returns_writes:
            return list(returned), returned
        at = self._outputs
        made = [
            stashed[edge.value] if edge.value in stashed else returned[at[edge.value]]
            for edge in ports.writes
        ]
        return made, returned

    # ---- the last stage --------------------------------------------------------------------------

    def _finish(
        self,
        frame: Frame,
        returned: tuple[Any, ...],
        micro_batch: int,
        step: Step,
        *,
        is_rerun: bool,
    ) -> None:
        """Compute the loss, keep the outputs, note where backward starts."""
        leaves = self.layout.output_leaves(returned)
        if step.loss is not None:
            self._finish_loss(frame, leaves, micro_batch, step, is_rerun=is_rerun)
        elif step.keeps_graph and torch.is_grad_enabled():
            marks = self._sealed_outputs(leaves, from_recording=is_rerun)
            frame.outputs = [edges_of(leaf, mark) for leaf, mark in zip(leaves, marks, strict=True)]
        if not is_rerun and step.keeps_output:
            unknown = step.keeps_graph and not torch.is_grad_enabled()
            step.outputs[micro_batch] = self._sealed_outputs(leaves, from_recording=unknown)

    def _sealed_outputs(self, leaves: list[Any], *, from_recording: bool) -> list[Any]:
        if from_recording:
            marks = map(self.layout.output_marks, range(len(leaves)))
            return [seal_as(leaf, wants) for leaf, wants in zip(leaves, marks, strict=True)]
        return [seal(leaf) for leaf in leaves]

    def _finish_loss(
        self, frame: Frame, leaves: list[Any], micro_batch: int, step: Step, *, is_rerun: bool
    ) -> None:
        task = step.loss
        assert task is not None
        target = self._of_caller(task.targets[micro_batch])
        with step.caller.autocast():
            loss = task.loss(self.layout.unflatten(leaves), target)
        if not is_rerun:
            step.losses[micro_batch] = loss.detach()
        if step.keeps_graph and torch.is_grad_enabled():
            if not loss.requires_grad:
                raise ValueError(
                    "the loss does not depend on anything that requires grad: there is nothing "
                    "to run backward from"
                )
            frame.root = loss * task.weights[micro_batch]

    # ---- backward --------------------------------------------------------------------------------

    def backward(self, micro_batch: int, step: Step) -> None:
        """Run the backward: from `Frame.later` to `Frame.handed`."""
        frame = step.frames[self.stage][micro_batch]
        writes = len(self.ports.writes)
        if self._has_work(frame, micro_batch, step):
            if frame.replay is not None:
                self._rerun(frame, micro_batch, step)
            self._run_backward(frame, micro_batch, step)
        else:
            frame.handed = frame.later[writes:]
        for at, placeholder in self.ports.host:
            if self.ports.reads[at].previous_holder(self.stage) == HOST:
                step.input_grads[micro_batch][placeholder] = frame.handed[at]
        frame.forget_graph()

    def _has_work(self, frame: Frame, micro_batch: int, step: Step) -> bool:
        """Whether any gradient is to be run back through this stage, and not only past it."""
        if self._is_last:
            return step.loss is not None or any(
                grads is not None for grads in step.output_grads[micro_batch]
            )
        return any(grads is not None for grads in frame.later[: len(self.ports.writes)])

    def _run_backward(self, frame: Frame, micro_batch: int, step: Step) -> None:
        starts = Roots()
        starts.add_all(frame.edges, frame.later)
        if frame.root is not None:
            starts.add_loss(frame.root)
        if frame.outputs:
            grads = [self._of_caller(grad) for grad in step.output_grads[micro_batch]]
            starts.add_all(frame.outputs, grads)
        starts.run(only=(self._anchor,) if step.inputs_only else ())
        entry = frame.entry
        assert entry is not None
        frame.handed = entry.gradients()

    def _rerun(self, frame: Frame, micro_batch: int, step: Step) -> None:
        with self.weights.changed.as_in(frame.replay), torch.enable_grad():
            entry = Entry(frame.inputs, self._anchor)
            values = entry.close()
            shared = {at: edges_of(values[at], values[at]) for at in self.ports.shared}
            made, returned = self._call(values, micro_batch, step, is_rerun=True)
            sealed = [seal_as(v, wants) for v, wants in zip(made, self._wants, strict=True)]
            frame.entry = entry
            frame.edges = self._edges(made, sealed, shared)
            if self._is_last:
                self._finish(frame, returned, micro_batch, step, is_rerun=True)
