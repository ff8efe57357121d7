"""`Step`: all the state of one step, or of the two halves of one differentiable call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fxpipe.ir.action import Action, Update
from fxpipe.ir.signature import CallSignature
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.runtime.activations import Frame
from fxpipe.runtime.backend import Transport
from fxpipe.runtime.backward_draws import Drawn
from fxpipe.runtime.batch_norm import Statistics
from fxpipe.runtime.leaves import Leaves, Place
from fxpipe.runtime.loss import LossTask
from fxpipe.runtime.loss_draws import LossDraws
from fxpipe.runtime.loss_reads import LeftTensors
from fxpipe.runtime.notes import add_notes
from fxpipe.runtime.recompute import Recompute
from fxpipe.runtime.record import Record
from fxpipe.runtime.stage import StageRunner
from fxpipe.runtime.surroundings import CallerState
from fxpipe.runtime.updates import Updates
from fxpipe.runtime.values import Gradients


@dataclass(frozen=True)
class Layout:
    """What all steps of a pipeline have in common."""

    model: nn.Module
    signature: CallSignature
    graph: StageGraph
    programs: tuple[StageProgram, ...]
    files: tuple[str, ...]
    """Name of each stage's source in tracebacks."""
    recompute: Recompute

    def output_leaves(self, returned: Sequence[Any]) -> list[Any]:
        """The model's output leaves: what the last stage returned, and constants."""
        values = iter(returned)
        return [
            self.graph.constants[at] if name is None else next(values)
            for at, name in enumerate(self.graph.outputs)
        ]

    def unflatten(self, leaves: list[Any]) -> Any:
        """The model's result."""
        return self.signature.output.unflatten(leaves)


class Step:
    """The state of one step.

    Attributes:
        layouts: per micro-batch, what all steps have in common.
        caller: the calling thread's state.
        inputs: per micro-batch, a tensor for every placeholder.
        originals: of tensors that all micro-batches are given whole and write into, by placeholder:
            as the caller has given them.
        keeps_graph: whether backwards will follow.
        key: of the step's random numbers.
        loss: what to differentiate; None in a call, whose caller brings the gradients of the outputs.
        keeps_output: whether outputs are kept.
        frames: per stage and micro-batch, what the stage holds.
        leaves: what stages read in place of parameters that other stages, or their copies, read too;
            in the order in which their gradients are added up.
        loss_draws: the generators that the loss may draw from, where it is computed again.
        left: the tensors that forwards leave in attributes, where a loss may read them.
        drawn: per stage and micro-batch, how often backwards have drawn random numbers.
        statistics: what deferred batch norms have seen.
        losses: per micro-batch, not weighted.
        outputs: per micro-batch, the output leaves, sealed.
        output_grads: per micro-batch, the gradients of the output leaves.
        input_grads: per micro-batch, the gradients of the placeholders.
        inputs_only: whether backward computes the inputs' gradients and no parameter's.
        updates: the optimiser; None if no stage is updated.
        parameters: per stage, those that its update is for.
        updated: the stages whose updates have begun.
        recomputed: stages and micro-batches that the schedule recomputes, whatever the pipeline does.
        transport: ways between ranks, new for each launch.
        record: when what was computed, new for each launch.
    """

    transport: Transport
    record: Record

    def __init__(
        self,
        layouts: Sequence[Layout],
        runners: Sequence[Sequence[StageRunner]],
        inputs: Sequence[Sequence[Tensor]],
        caller: CallerState,
        leaves: Mapping[Place, Leaves],
        *,
        key: int,
        keeps_graph: bool,
        loss: LossTask | None = None,
        keeps_output: bool = True,
        originals: Mapping[int, Tensor] | None = None,
        recomputed: Collection[tuple[int, int]] = (),
    ) -> None:
        self.layouts = layouts
        self.caller = caller
        self.inputs = inputs
        self.originals = originals or {}
        self.updates: Updates | None = None
        self.parameters: Mapping[int, Sequence[Tensor]] = {}
        self.updated: list[int] = []
        self.recomputed = recomputed
        self.keeps_graph = keeps_graph
        self.key = key
        self.loss = loss
        self.keeps_output = keeps_output
        self.leaves = leaves
        self.loss_draws: dict[Place, LossDraws] = {}
        reads = loss is not None and loss.loss_fn is not None
        self.left = LeftTensors() if reads else None
        self.drawn: dict[tuple[int, int], Drawn] = {}
        self.statistics = Statistics()
        self.inputs_only = False
        count = len(inputs)
        self.frames: list[list[Frame]] = [
            [stages[stage].new_frame() for stages in runners] for stage in range(len(runners[0]))
        ]
        self.losses: list[Tensor | None] = [None] * count
        self.outputs: list[list[Any]] = [[] for _ in range(count)]
        self.output_grads: list[Sequence[Gradients]] = [()] * count
        self.input_grads: list[list[Gradients]] = [[None] * len(given) for given in inputs]

    def keeps(self, micro_batch: int) -> bool:
        """Whether a backward of a micro-batch will follow: not if it has no part in the loss."""
        return self.keeps_graph and (self.loss is None or self.loss.counts(micro_batch))

    def reruns(self, micro_batch: int, stage: int) -> bool:
        """Whether a stage's forward of a micro-batch keeps only its inputs."""
        return self.keeps(micro_batch) and (
            (stage, micro_batch) in self.recomputed
            or self.layouts[micro_batch].recompute.reruns(micro_batch, len(self.inputs))
        )

    def update(self, stage: int) -> None:
        """Take the optimiser's step for what only this stage reads."""
        if self.updates is not None and not self.updates.waits:
            self.updated.append(stage)
            self.updates.update(self.parameters.get(stage, ()))

    def explain(self, error: BaseException, action: Action) -> None:
        """Add to an exception where the pipeline was."""
        layout = self.layouts[0 if isinstance(action, Update) else action.micro_batch]
        add_notes(error, action, layout.programs, layout.files)

    def given(self) -> list[Any]:
        """What the caller gave for the stages to read."""
        targets = [] if self.loss is None else self.loss.targets
        return [*map(list, self.inputs), *targets, *map(list, self.output_grads)]

    def handed_out(self) -> list[Tensor]:
        """The tensors that the caller will read."""
        values = [*self.losses, *(leaf for leaves in self.outputs for leaf in leaves)]
        values += [grad for grads in self.input_grads for grad in grads]
        return [value for value in values if isinstance(value, Tensor)]

    def drop(self) -> None:
        """Let go of everything that was kept for backward."""
        for frames in self.frames:
            frames.clear()
        self.statistics.forget()
        self.inputs = ()
        self.losses = []
        self.outputs = []
        self.output_grads = []
        self.input_grads = []
