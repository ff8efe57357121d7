"""`Runners`: the stages of one situation, each on its rank, and their copies on other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fxpipe.analysis.reuse import reused_weights
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import Placement
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.runtime.copies import require_can_be_copied
from fxpipe.runtime.for_now import may_hold
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.leaves import Place
from fxpipe.runtime.ports import Ports
from fxpipe.runtime.recompute import Recompute
from fxpipe.runtime.stage import StageRunner
from fxpipe.runtime.step import Layout
from fxpipe.runtime.weights import Load, StageWeights, tied_parameters


class Runners:
    """The stages of a model, bound to the user's tensors on the ranks of `placement`.

    Where a schedule runs a stage on another rank, too, a copy of it is made there when it is first
    asked for; the user's tensors stay where they are.

    Args:
        model: the user's; its parameters and buffers are moved to the devices of their stages.
        capture: the recording.
        programs: one per stage.
        graph: the values between the stages.
        placement: stage → rank.
        lanes: one per rank.
        load: `fxpipe.codegen.load.load`.
        recompute: which forwards are rerun at backward.
        defers_norms: whether running statistics wait for the step's end.

    Attributes:
        owners: per stage, its runner on the rank that has the user's tensors.
        layout: what all steps have in common.
        names: of the placeholders.
        written: positions of the placeholders whose memory the model writes into.
    """

    def __init__(
        self,
        model: nn.Module,
        capture: Capture,
        programs: Sequence[StageProgram],
        graph: StageGraph,
        placement: Placement,
        lanes: Sequence[Lane],
        load: Load,
        *,
        recompute: Recompute,
        defers_norms: bool,
    ) -> None:
        self._model = model
        self._capture = capture
        self._lanes = lanes
        self._load = load
        self._defers_norms = defers_norms
        self.names = [leaf.placeholder or "" for leaf in capture.signature.placeholders]
        self._written = _written_inputs(capture)
        self.written = tuple(at for at, name in enumerate(self.names) if name in self._written)
        self._tied = tied_parameters(model, programs)
        self._reused = reused_weights(capture, model)
        self._copies: dict[Place, StageRunner] = {}
        self.owners = [
            self._make(program, graph, placement.rank_of(program.stage)) for program in programs
        ]
        self.layout = Layout(
            model=model,
            signature=capture.signature,
            graph=graph,
            programs=tuple(programs),
            files=tuple(_file_of(runner.weights.module) for runner in self.owners),
            recompute=recompute,
        )
        for runner in self.owners:
            runner.layout = self.layout
            runner.lane.adopt(runner.weights.tensors())

    def on(self, stage: int, rank: int) -> StageRunner:
        """A stage's runner on a rank.

        Raises:
            ScheduleError: if it would be a second copy of a stage that cannot have one.
        """
        owner = self.owners[stage]
        if owner.weights.place == (stage, rank):
            return owner
        if (stage, rank) not in self._copies:
            require_can_be_copied(self._model, owner.program, owner.weights)
            copy = self._make(owner.program, self.layout.graph, rank, is_copy=True)
            copy.layout = self.layout
            self._copies[stage, rank] = copy
        return self._copies[stage, rank]

    def _make(
        self, program: StageProgram, graph: StageGraph, rank: int, *, is_copy: bool = False
    ) -> StageRunner:
        lane, stage = self._lanes[rank], program.stage
        weights = StageWeights(
            self._model,
            program,
            self._capture.constants,
            self._load,
            device=lane.device,
            tied=frozenset(p for p, stages in self._tied.items() if stage in stages),
            defers_norms=self._defers_norms,
            rank=rank,
            is_copy=is_copy,
        )
        runner = StageRunner(
            program,
            Ports.of(program, graph, self.names),
            weights,
            lane,
            is_last=stage == graph.num_stages - 1,
            written=self._written,
            for_now=may_hold(self._capture),
        )
        runner.reuses = not self._reused.isdisjoint(weights.tensors())
        return runner


def _written_inputs(capture: Capture) -> frozenset[str]:
    """The placeholders whose memory the model writes into."""
    nodes = capture.graph.nodes
    written = {storage for node in nodes for storage in node.meta.get("mutates", ())}
    inputs = [node for node in nodes if node.op == "placeholder"]
    return frozenset(
        node.name for node in inputs if written.intersection(node.meta.get("storages", ()))
    )


def _file_of(stage: Any) -> str:
    name: str = type(stage).forward.__code__.co_filename
    return name
