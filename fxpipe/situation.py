"""`Situation`: one recorded way of calling a model, made ready to run.

A model may decide on its data (``if mask.all():``). A recording then holds for the micro-batches that
decide alike; for others the model is recorded again, as a sibling of the first situation with the
same placement. The same where it decides on the number of rows (``if len(x) > 1:``). The micro-batches
of one step may run through different siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from torch import nn

from fxpipe.analysis.varying import varying_outputs
from fxpipe.believed import Believed
from fxpipe.capture.guards import Ahead, GuardCheck
from fxpipe.codegen.load import load
from fxpipe.compiler import Line
from fxpipe.errors import CaptureError
from fxpipe.ir.capture import Capture
from fxpipe.options import Options
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.loss import Call
from fxpipe.runtime.runtime import Runtime

Record: TypeAlias = "Callable[[tuple[Any, ...], dict[str, Any]], Situation]"
"""Records the model anew for one micro-batch."""


@dataclass(frozen=True)
class Anew:
    """How the model is recorded anew.

    Attributes:
        for_data: for a micro-batch that decides otherwise on its data.
        for_rows: for one that goes another way because of the number of its rows.
        holds: whether a capture says what the model does with a micro-batch.
    """

    for_data: Record
    for_rows: Record
    holds: Callable[[Capture, Call], bool]


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
        anew: Anew,
    ) -> None:
        self.line = line
        self.siblings = [self]
        self._anew = anew
        self._believed = Believed(line.capture.rows, line.capture.only_rows)
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

    def _holds_always(self, rows: int) -> bool:
        """Whether any micro-batch of so many rows may run through it."""
        return not self._decides and rows in self._believed

    def _sibling(self, call: Call, rows: int, ahead: Ahead) -> Situation:
        """The sibling of one micro-batch; `ahead` has the buffers as those before it leave them."""
        for known in self.siblings:
            if rows in known._believed and known._guards.failed(*call, ahead) is None:
                return known
        decided_so = [known for known in self.siblings if known._decides_so(call, ahead)]
        for known in decided_so:
            if rows not in known._believed and self._holds(known, call, rows, ahead):
                return known
        if not decided_so:
            new = self._add(self._anew.for_data, call, ahead)
            if rows in new._believed or self._holds(new, call, rows, ahead):
                return new
        return self._add(self._anew.for_rows, call, ahead)

    def _decides_so(self, call: Call, ahead: Ahead) -> bool:
        """Whether the checks of a recording pass for a micro-batch, of whatever size."""
        try:
            return self._guards.failed(*call, ahead.copy()) is None
        except Exception:  # what leads to a decision may take no other size than the recorded one
            return False

    def _holds(self, known: Situation, call: Call, rows: int, ahead: Ahead) -> bool:
        """Whether a recording turns out to hold for a number of rows; then it does from now on."""
        with ahead.in_model(self._guards.model):
            if not self._anew.holds(known.line.capture, call):
                return False
        known._believed.add(rows, (each._believed for each in self.siblings if each is not known))
        known._guards.failed(*call, ahead)
        return True

    def _add(self, record: Record, call: Call, ahead: Ahead) -> Situation:
        """A new sibling, recorded for a micro-batch."""
        if len(self.siblings) >= self._most:
            raise self._too_many(call, ahead)
        with ahead.in_model(self._guards.model):
            new = record(*call)
        new._guards.failed(*call, ahead)
        if new.line.capture.signature.output != self.line.capture.signature.output:
            raise CaptureError(
                "the structure of the model's result depends on its data, or on the number of rows: "
                "micro-batches of one batch cannot be joined"
            )
        self.siblings.append(new)
        return new

    def _too_many(self, call: Call, ahead: Ahead) -> CaptureError:
        guard = self._guards.failed(*call, ahead)
        most = self._most
        if guard is None:
            return CaptureError(
                f"the model does something else for more than {most} numbers of rows: each is a "
                "recording of its own\n  What to do: let micro-batches have as many rows in every step "
                "(chunks, batch sizes); compute with tensors what Python decides on the number of rows; "
                "put it in a module that no cut divides (cuts=...); or raise max_variants"
            )
        where = guard.meta["source"]
        return CaptureError(
            f"the model decides on its data in more than {most} ways: each is a recording of its own\n"
            f"  at: {where}\n  What to do: compute with tensors where Python decides there "
            "(torch.where, a mask); put the decision in a module that no cut divides (cuts=...); or "
            "raise max_variants"
        )


def variants_of(
    situations: Sequence[Situation], rows: Sequence[int], calls: Callable[[], Sequence[Call]]
) -> Sequence[Situation]:
    """For each micro-batch the sibling whose decisions come out as the micro-batch's.

    Args:
        situations: per micro-batch, any recording of its call.
        rows: of each micro-batch.
        calls: gives the micro-batches' arguments; asked only if the recordings do not hold anyway.

    Raises:
        CaptureError: if there are too many.
    """
    given = list(zip(situations, rows, strict=True))
    if all(situation._holds_always(count) for situation, count in given):
        return situations
    ahead = Ahead()
    return [
        situation if situation._holds_always(count) else situation._sibling(call, count, ahead)
        for (situation, count), call in zip(given, calls(), strict=True)
    ]
