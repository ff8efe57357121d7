"""`StageGraph`: which values cross between stages. `StageProgram`: the source of one stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fxpipe.ir.spec import ValueSpec, is_differentiable, spec_bytes

HOST: Final = -1
"""The producer of a model input: the caller."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A value made by one stage (or given by the caller) and read by others.

    Forward, it goes straight from the producer to each consumer. Backward, its gradient goes down the
    chain of consumers, last one first, each adding its own part: eager autograd adds the later
    readers first, and so the sums keep their order.

    Attributes:
        value: name of the node that makes it.
        producer: its stage; `HOST` for a model input.
        consumers: the stages that read it, ascending. A model output is read by the last stage.
        spec: its shapes at the recorded batch size.
    """

    value: str
    producer: int
    consumers: tuple[int, ...]
    spec: ValueSpec = None

    @property
    def is_portal(self) -> bool:
        """Whether the value passes over a stage."""
        return self.producer != HOST and self.consumers[-1] > self.producer + 1

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return spec_bytes(self.spec)

    @property
    def is_differentiable(self) -> bool:
        """Whether a gradient comes back along the edge."""
        return is_differentiable(self.spec)

    def next_reader(self, stage: int) -> int | None:
        """Where `stage` gets the gradient of the later readers from; None at the last reader."""
        return next((consumer for consumer in self.consumers if consumer > stage), None)

    def previous_holder(self, stage: int) -> int:
        """Where reader `stage` hands its gradient to: the reader before it, or the producer."""
        earlier = [consumer for consumer in self.consumers if consumer < stage]
        return earlier[-1] if earlier else self.producer

    def __str__(self) -> str:
        kind = "portal" if self.is_portal else "edge"
        source = "caller" if self.producer == HOST else self.producer
        return f"{kind} {self.value}: {source} → {', '.join(map(str, self.consumers))} ({self.nbytes} B)"


@dataclass(frozen=True)
class StageGraph:
    """The stages and the values between them.

    Attributes:
        num_stages: number of stages.
        inputs: edges from the caller, in order of the graph's placeholders; unread ones left out.
        edges: edges between stages, in the order their values are made.
        outputs: the model's output leaves in order: a node's name, or None where the leaf is a
            constant (found in `constants` at the same index).
        constants: output leaves that are no node's value: index → value.
    """

    num_stages: int
    inputs: tuple[Edge, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[str | None, ...] = ()
    constants: Mapping[int, object] = field(default_factory=dict)

    def producers(self, stage: int) -> tuple[int, ...]:
        """The stages whose values `stage` reads, ascending."""
        return tuple(sorted({edge.producer for edge in self.edges if stage in edge.consumers}))

    def consumers(self, stage: int) -> tuple[int, ...]:
        """The stages that hand `stage` a gradient, ascending: along every chain it is part of."""
        found: set[int] = set()
        for edge in self.edges:
            if edge.producer == stage or stage in edge.consumers:
                later = edge.next_reader(stage)
                if later is not None and edge.is_differentiable:
                    found.add(later)
        for edge in self.inputs:
            if stage in edge.consumers and edge.is_differentiable:
                later = edge.next_reader(stage)
                if later is not None:
                    found.add(later)
        return tuple(sorted(found))

    def reads(self, stage: int) -> tuple[Edge, ...]:
        """Edges into a stage: the caller's first, then those of earlier stages."""
        return tuple(edge for edge in (*self.inputs, *self.edges) if stage in edge.consumers)

    def writes(self, stage: int) -> tuple[Edge, ...]:
        """Edges out of a stage."""
        return tuple(edge for edge in self.edges if edge.producer == stage)

    @property
    def portals(self) -> tuple[Edge, ...]:
        """The edges that pass over a stage."""
        return tuple(edge for edge in self.edges if edge.is_portal)


@dataclass(frozen=True, slots=True)
class RandomScope:
    """Where a stage draws random numbers: calls `first_call`, `first_call` + 1, … of a module.

    `is_leaf`: the module is one node of the graph (a Dropout, an LSTM). Otherwise its own forward
    calls random functions, and the scope is the smallest re-rolled module around them.
    """

    path: str
    first_call: int
    is_leaf: bool


@dataclass(frozen=True, slots=True)
class WeightScope:
    """A module whose own forward multiplies with parameters that can wait for their gradients.

    `parameters`: their names in the model.
    """

    path: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class StageProgram:
    """One stage as Python source.

    The source defines a class `class_name` with
    ``forward(self, stash, pop, <inputs…>) -> tuple`` that reads ``self.<local name>`` for modules,
    parameters, buffers and constants. ``pop(value)`` gives a portal's value, ``stash(value, tensor)``
    hands one on; the other values come as arguments and leave as the returned tuple.

    Attributes:
        stage: its index.
        source: text of the file.
        class_name: of the class in it.
        inputs: values passed as arguments, in order.
        pops: portals read, in the order they are popped.
        outputs: values returned, in order.
        stashes: portals made, in the order they are stashed.
        modules: local name → module path ("" is the model).
        holders: local names of those modules that the stage does not call: it only keeps something in
            them.
        tensors: local name → name of a parameter or buffer of the model.
        constants: local name → name in ``Capture.constants``, or the object itself.
        random: where random numbers are drawn inside modules the stage calls.
        buffers: names of the model's buffers, and of its parameters, that forward changes.
        needs_keys: whether the source itself draws random numbers (``with self.keyed(scope, draw):``).
        needs_deferring: whether the source itself runs operators whose weights' gradients are put off
            (``self.deferring(F.linear)(x, weight)``).
        split_layers: paths of layers that can put off the gradients of their weights.
        split_scopes: modules the stage calls whose own forward has operators that can.
        draws_python: whether modules that the stage calls draw from ``random`` or NumPy.
        needs_device: whether the source names ``self.device``, the device its stage runs on.
        lines: line number of `source` → "module path, user's source line", for error notes.
    """

    stage: int
    source: str
    class_name: str
    inputs: tuple[str, ...]
    pops: tuple[str, ...]
    outputs: tuple[str, ...]
    stashes: tuple[str, ...]
    modules: Mapping[str, str]
    tensors: Mapping[str, str]
    constants: Mapping[str, object]
    holders: tuple[str, ...] = ()
    random: tuple[RandomScope, ...] = ()
    buffers: tuple[str, ...] = ()
    needs_keys: bool = False
    draws_python: bool = False
    needs_device: bool = False
    needs_deferring: bool = False
    split_layers: tuple[str, ...] = ()
    split_scopes: tuple[WeightScope, ...] = ()
    lines: Mapping[int, str] = field(default_factory=dict)

    @property
    def called(self) -> tuple[str, ...]:
        """Paths of the modules that the stage calls."""
        return tuple(path for local, path in self.modules.items() if local not in self.holders)

    def __str__(self) -> str:
        return self.source
