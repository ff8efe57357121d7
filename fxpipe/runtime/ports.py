"""`Ports`: where a stage's values are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fxpipe.errors import InternalError
from fxpipe.ir.stage import HOST, Edge, StageGraph, StageProgram


@dataclass(frozen=True)
class Ports:
    """Positions of a stage's values among its reads and its writes."""

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
