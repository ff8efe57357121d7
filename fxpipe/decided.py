"""`Decided`: what the compiler made of a pipeline's model, to look at."""

from __future__ import annotations

from torch import nn

from fxpipe.compiler import Line
from fxpipe.errors import CaptureError
from fxpipe.executables import predict_step, step_schedule
from fxpipe.ir.cost import CostProfile
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.schedule import Schedule
from fxpipe.ir.stage import StageGraph, StageProgram
from fxpipe.ir.timeline import Timeline
from fxpipe.options import Options
from fxpipe.recordings import Recordings
from fxpipe.report import report
from fxpipe.wrapper import ModelWrapper


class Decided(ModelWrapper):
    """A model that is recorded, with the decisions on its first recording."""

    def __init__(self, model: nn.Module, options: Options, recordings: Recordings) -> None:
        super().__init__(model)
        self._options = options
        self._recordings = recordings

    def extra_repr(self) -> str:
        """What is known of the cut."""
        line = self._recordings.line
        made = str(line.plan) if line is not None else "not captured yet"
        return f"{made}; {len(self._options.devices)} ranks, {self._options.chunks} micro-batches"

    @property
    def plan(self) -> PartitionPlan:
        """Which stage every node belongs to.

        Raises:
            CaptureError: if the model has not been captured yet; so do the other properties.
        """
        return self._made.plan

    @property
    def stage_graph(self) -> StageGraph:
        """The values that cross between stages."""
        return self._made.stage_graph

    @property
    def stages(self) -> tuple[StageProgram, ...]:
        """The source of every stage."""
        return self._made.stages

    @property
    def costs(self) -> CostProfile | None:
        """What the nodes cost."""
        return self._made.costs

    @property
    def schedule(self) -> Schedule:
        """What every rank does in a step of `chunks` micro-batches."""
        return step_schedule(self._options, self._made, self._options.chunks)

    def predict(self, micro_batches: int | None = None) -> Timeline:
        """The timeline of a step, simulated with the costs of the stages.

        Args:
            micro_batches: None: as many as `chunks`.

        Raises:
            ExecutionError: if the costs are not known (a saved plan was given).
        """
        return predict_step(self._options, self._made, micro_batches or self._options.chunks)

    def report(self) -> str:
        """Tables: stages and their costs, what crosses between them or is shared, the predicted step."""
        predicted = self.predict() if self._made.costs is not None else None
        return report(self._made, predicted, self._options.chunks, self.schedule, self.module)

    @property
    def _made(self) -> Line:
        if self._recordings.line is None:
            raise CaptureError(
                "this pipeline has not captured its model yet: call it once, or give "
                "fxpipe.compile an example batch (example_args=..., example_kwargs=...)"
            )
        return self._recordings.line
