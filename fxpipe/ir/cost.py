"""What nodes and stages cost: seconds, bytes, operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


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
    """Costs of one stage for one micro-batch: seconds, and bytes kept between forward and backward."""

    forward: float
    backward: float
    weight: float = 0.0
    saved_bytes: int = 0
    parameter_bytes: int = 0

    @property
    def input(self) -> float:
        """Seconds of the part of backward that makes the gradient of the inputs."""
        return self.backward - self.weight


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

    def __str__(self) -> str:
        return (
            f"CostProfile ({self.source}, batch {self.batch_size}): {len(self.nodes)} nodes, "
            f"{self.total * 1e3:.2f} ms forward and backward"
        )
