"""`PartitionPlan`: which stage every node belongs to. `Placement`: which rank runs which stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PartitionPlan:
    """Every node of ``Capture.body`` with its stage.

    Attributes:
        stages: node name → stage (0-based), every stage present, in the graph's order.
        fingerprint: of the capture the plan was made for; a stale plan is refused.
        starts: the first node of every stage but the first, as a user would name it in `cuts`.
        anchors: ``"path#call"`` of the module calls with parameters → stage; later captures of the
            same model (eval mode, another sequence length) are cut so that none of these moves.
    """

    stages: Mapping[str, int]
    fingerprint: str
    starts: tuple[str, ...] = ()
    anchors: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        present = set(self.stages.values())
        if present and present != set(range(max(present) + 1)):
            raise ValueError(f"stages must be numbered 0, 1, … without gaps, got {sorted(present)}")

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return max(self.stages.values(), default=-1) + 1

    def nodes_of(self, stage: int) -> tuple[str, ...]:
        """Names of a stage's nodes, in the graph's order."""
        return tuple(name for name, at in self.stages.items() if at == stage)

    def __str__(self) -> str:
        sizes = [len(self.nodes_of(stage)) for stage in range(self.num_stages)]
        where = ", ".join(self.starts) or "nothing"
        return f"PartitionPlan: {self.num_stages} stages of {sizes} nodes, cut before {where}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Stage → rank."""

    ranks: tuple[int, ...]

    @classmethod
    def loop(cls, ranks: int, stages_per_rank: int = 1) -> Placement:
        """Stage s on rank ``s % ranks``."""
        return cls(tuple(stage % ranks for stage in range(ranks * stages_per_rank)))

    def rank_of(self, stage: int) -> int:
        """The rank that runs a stage."""
        return self.ranks[stage]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages a rank runs, ascending."""
        return tuple(stage for stage, at in enumerate(self.ranks) if at == rank)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return max(self.ranks) + 1
