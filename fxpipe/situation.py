"""`Situation`: one recorded way of calling a model, made ready to run.

A model may decide on its data (``if mask.all():``). A recording then holds for the micro-batches that
decide alike; for others the model is recorded again, as a sibling of the first situation with the
same placement. The micro-batches of one step may run through different siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from torch import nn

from fxpipe.analysis.varying import varying_outputs
from fxpipe.capture.guards import Ahead, GuardCheck
from fxpipe.codegen.load import load
from fxpipe.compiler import Line
from fxpipe.errors import CaptureError
from fxpipe.options import Options
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.loss import Call
from fxpipe.runtime.runtime import Runtime

Record: TypeAlias = "Callable[[tuple[Any, ...], dict[str, Any]], Situation]"
"""Records the model anew for one micro-batch."""


class Situation:
    """A line of the compiler with its runtime.

    Attributes:
        line: what the compiler made.
        runtime: its stages.
        siblings: recordings of the same call that decide otherwise on its data; this one is the first.
    """

    def __init__(
        self,
        model: nn.Module,
        line: Line,
        lanes: Sequence[Lane],
        backend: Backend,
        options: Options,
        record: Record,
    ) -> None:
        self.line = line
        self.siblings = [self]
        self._record = record
        self._most = options.max_variants
        self._guards = GuardCheck(line.capture, model)
        self._decides = any("ops.check_value(" in program.source for program in line.stages)
        self.runtime = Runtime(
            model,
            line.capture,
            line.stages,
            line.stage_graph,
            line.placement,
            lanes,
            backend,
            load,
            recompute=options.recompute,
            batch_norm=options.batch_norm,
        )

    @property
    def draws(self) -> bool:
        """Whether the model draws random numbers."""
        return any(program.random or program.needs_keys for program in self.line.stages)

    @cached_property
    def varying(self) -> frozenset[int]:
        """Positions of the results that follow from the rows."""
        return varying_outputs(self.line.capture)

    def _sibling(self, call: Call, ahead: Ahead) -> Situation:
        """The sibling of one micro-batch; `ahead` has the buffers as those before it leave them."""
        for known in self.siblings:
            if known._guards.failed(*call, ahead) is None:
                return known
        if len(self.siblings) >= self._most:
            raise self._too_many(call, ahead)
        with ahead.in_model(self._guards.model):
            new = self._record(*call)
        new._guards.failed(*call, ahead)
        if new.line.capture.signature.output != self.line.capture.signature.output:
            raise CaptureError(
                "the structure of the model's result depends on its data: micro-batches of one "
                "batch cannot be joined"
            )
        self.siblings.append(new)
        return new

    def _too_many(self, call: Call, ahead: Ahead) -> CaptureError:
        guard = self._guards.failed(*call, ahead)
        where = guard.meta["source"] if guard is not None else "its forward"
        most = self._most
        return CaptureError(
            f"the model decides on its data in more than {most} ways: each is a recording of its own\n"
            f"  at: {where}\n  What to do: compute with tensors where Python decides there "
            "(torch.where, a mask); put the decision in a module that no cut divides (cuts=...); or "
            "raise max_variants"
        )


def variants_of(
    situations: Sequence[Situation], calls: Callable[[], Sequence[Call]]
) -> Sequence[Situation]:
    """For each micro-batch the sibling whose decisions come out as the micro-batch's.

    Args:
        situations: per micro-batch, any recording of its call.
        calls: gives the micro-batches' arguments; asked only if a model decides on its data.

    Raises:
        CaptureError: if there are too many.
    """
    if not any(situation._decides for situation in situations):
        return situations
    ahead = Ahead()
    return [
        situation._sibling(call, ahead) if situation._decides else situation
        for situation, call in zip(situations, calls(), strict=True)
    ]
