"""What nodes and stages cost: seconds, bytes, operations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from fxpipe.ir.action import Kind
from fxpipe.ir.numbers import is_real
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.stage import StageGraph

_CLOSE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Costs of one node for one micro-batch of the recorded size.

    `forward` and `backward` are seconds (if estimated, seconds on a nominal device); `weight` is the
    part of `backward` that computes parameter gradients; `saved_bytes` are kept from forward to
    backward (parameters left out); `output_bytes` is the size of the node's value.
    """

    forward: float = 0.0
    backward: float = 0.0
    weight: float = 0.0
    flops: int = 0
    saved_bytes: int = 0
    output_bytes: int = 0

    @property
    def total(self) -> float:
        """Seconds forward and backward."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True)
class StageCost:
    """Costs of one stage for one micro-batch: seconds, and bytes kept between forward and backward.

    Attributes:
        forward: seconds.
        backward: seconds of a full backward.
        weight: the part of `backward` that makes parameter gradients.
        saved_bytes: kept from forward to backward.
        parameter_bytes: of the stage's parameters.
        weight_bytes: the part of `saved_bytes` that the weight half of a split backward needs: it
            stays from the input half on. None: all of it.
        input_bytes: kept from forward to recomputation, where there is one: what the stage reads. 0:
            not known; wherever costs meet a stage graph, the graph says it (`with_reads`).
        recompute: seconds of a recomputation; None: a forward's.
        update: seconds of the optimiser step.

    Raises:
        ValueError: if a time is negative, infinite or not a number, `weight` more than `backward`, bytes
            are negative, or `weight_bytes` more than `saved_bytes`.
    """

    forward: float
    backward: float
    weight: float = 0.0
    saved_bytes: int = 0
    parameter_bytes: int = 0
    weight_bytes: int | None = None
    input_bytes: int = 0
    recompute: float | None = None
    update: float = 0.0

    def __post_init__(self) -> None:
        times = (self.forward, self.backward, self.weight, self.recompute or 0.0, self.update)
        if not all(is_real(time) and math.isfinite(time) for time in times):
            raise ValueError(f"the seconds of a stage must be finite numbers, got {self}")
        if min(times) < 0.0:
            raise ValueError(f"the seconds of a stage cannot be negative, got {self}")
        if self.weight > self.backward * (1.0 + _CLOSE):
            raise ValueError(
                f"the weight half takes {self.weight:g} of the {self.backward:g} seconds of a backward: "
                "`backward` is the whole of it, both halves"
            )

        self._require_bytes()

    def _require_bytes(self) -> None:
        sizes = (self.saved_bytes, self.parameter_bytes, self.kept_for_weight, self.input_bytes)
        if not all(is_real(size) and size >= 0 for size in sizes):
            raise ValueError(f"the bytes of a stage cannot be negative, got {self}")
        if self.kept_for_weight > self.saved_bytes:
            raise ValueError(
                f"the weight half needs {self.weight_bytes} of the {self.saved_bytes} bytes that are "
                "kept for backward: `saved_bytes` is the whole of it"
            )

    @property
    def input(self) -> float:
        """Seconds of the part of backward that makes the gradient of the inputs."""
        return max(0.0, self.backward - self.weight)

    def seconds(self, kind: Kind) -> float:
        """Seconds of one computation."""
        match kind:
            case Kind.FORWARD:
                return self.forward
            case Kind.BACKWARD:
                return self.backward
            case Kind.BACKWARD_INPUT:
                return self.input
            case Kind.BACKWARD_WEIGHT:
                return self.weight
            case Kind.RECOMPUTE:
                return self.forward if self.recompute is None else self.recompute
            case _:
                assert_never(kind)

    @property
    def kept_for_weight(self) -> int:
        """Bytes that stay between the two halves of a split backward."""
        return self.saved_bytes if self.weight_bytes is None else self.weight_bytes


@dataclass(frozen=True)
class CostProfile:
    """Costs of every node of a capture.

    Attributes:
        nodes: node name → cost, for every node of ``Capture.body``.
        source: ``"measure"`` or ``"estimate"``.
        batch_size: rows of the micro-batch the costs hold for.
        fingerprint: of the capture they were made for.
    """

    nodes: Mapping[str, NodeCost]
    source: str
    batch_size: int
    fingerprint: str
    parameter_bytes: Mapping[str, int] = field(default_factory=dict)
    """Node name → bytes of the parameters it reads."""

    @property
    def total(self) -> float:
        """Seconds of one forward and backward of all nodes."""
        return sum(cost.total for cost in self.nodes.values())

    def over(self, names: Iterable[str]) -> StageCost:
        """The sum over some nodes, as the cost of a stage made of them."""
        chosen = list(names)
        costs = [self.nodes[name] for name in chosen]
        return StageCost(
            forward=sum(cost.forward for cost in costs),
            backward=sum(cost.backward for cost in costs),
            weight=sum(cost.weight for cost in costs),
            saved_bytes=sum(cost.saved_bytes for cost in costs),
            parameter_bytes=sum(self.parameter_bytes.get(name, 0) for name in chosen),
        )

    def of_stages(self, plan: PartitionPlan, graph: StageGraph) -> tuple[StageCost, ...]:
        """The cost of every stage of a plan.

        Args:
            plan: of the same capture.
            graph: its stages and the values between them: what a recomputation starts from.
        """
        stages = range(plan.num_stages)
        return with_reads([self.over(plan.nodes_of(stage)) for stage in stages], graph)

    def __str__(self) -> str:
        return (
            f"CostProfile ({self.source}, batch {self.batch_size}): {len(self.nodes)} nodes, "
            f"{self.total * 1e3:.2f} ms forward and backward"
        )


def with_reads(costs: Sequence[StageCost], graph: StageGraph | None) -> tuple[StageCost, ...]:
    """Costs with the bytes that every stage reads, by its graph, where they do not say them."""
    if graph is None:
        return tuple(costs)
    return tuple(
        cost
        if cost.input_bytes or stage >= graph.num_stages
        else replace(cost, input_bytes=sum(edge.nbytes for edge in graph.reads(stage)))
        for stage, cost in enumerate(costs)
    )
