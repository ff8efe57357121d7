"""`PartitionPlan`: which stage every node belongs to. `Placement`: which rank runs which stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fxpipe.ir.numbers import is_whole

NOWHERE: Final = "(nothing)"
"""Where a stage without a node starts."""


@dataclass(frozen=True)
class PartitionPlan:
    """Every node of ``Capture.body`` with its stage.

    Attributes:
        stages: node name → stage (0-based), every stage present but `idle` ones, in the graph's order.
        fingerprint: of the capture the plan was made for; a stale plan is refused.
        starts: the first node of every stage but the first, as a user would name it in `cuts`;
            `NOWHERE` for a stage that has none.
        anchors: ``"path#call"`` of the module calls with parameters → stage; later captures of the
            same model (eval mode, another sequence length) are cut so that none of these moves.
        idle: stages without a node: what is theirs is not called in this capture (a decoder alone, an
            auxiliary head that only training has). They take part in a step, and compute nothing.
    """

    stages: Mapping[str, int]
    fingerprint: str
    starts: tuple[str, ...] = ()
    anchors: Mapping[str, int] = field(default_factory=dict)
    idle: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        present = {*self.stages.values(), *self.idle}
        if present and present != set(range(max(present) + 1)):
            raise ValueError(f"stages must be numbered 0, 1, … without gaps, got {sorted(present)}")

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return max((*self.stages.values(), *self.idle), default=-1) + 1

    def nodes_of(self, stage: int) -> tuple[str, ...]:
        """Names of a stage's nodes, in the graph's order."""
        return tuple(name for name, at in self.stages.items() if at == stage)

    def __str__(self) -> str:
        sizes = [len(self.nodes_of(stage)) for stage in range(self.num_stages)]
        where = ", ".join(self.starts) or "nothing"
        return f"PartitionPlan: {self.num_stages} stages of {sizes} nodes, cut before {where}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Stage → rank, for one copy of the stages or for several replicas of them.

    Attributes:
        ranks: stage → rank.
        replicas: stage → rank of each further copy.
        copy_of: micro-batch → the copy it runs through; 0, which is `ranks`, for those beyond its end.

    Raises:
        ValueError: if ranks are no numbers from 0 on, or copies are of other stages or are not there.
    """

    ranks: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...] = ()
    copy_of: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for ranks in (self.ranks, *self.replicas):
            if not _are_numbers(ranks):
                raise ValueError(
                    "a placement is a tuple with the rank of every stage, such as (0, 1, 1, 0), ranks "
                    f"counting from 0; got {ranks!r}"
                )
            if len(ranks) != len(self.ranks):
                raise ValueError(f"a copy of {len(ranks)} stages of {len(self.ranks)}: {ranks}")
        if not _are_numbers(self.copy_of) or max(self.copy_of, default=0) > len(self.replicas):
            raise ValueError(
                f"copies are numbered 0 to {len(self.replicas)} here, got copy_of={self.copy_of!r}"
            )

    @classmethod
    def loop(cls, ranks: int, stages_per_rank: int = 1) -> Placement:
        """Stage s on rank ``s % ranks``."""
        return cls.round_robin(ranks * stages_per_rank, ranks)

    @classmethod
    def round_robin(cls, stages: int, ranks: int) -> Placement:
        """Any number of stages in a loop: stage s on rank ``s % ranks``.

        Raises:
            ValueError: if there is no rank or no stage.
        """
        _require_some(ranks=ranks, stages=stages)
        return cls(tuple(stage % ranks for stage in range(stages)))

    @classmethod
    def fold(cls, ranks: int, stages_per_rank: int = 2) -> Placement:
        """Down the ranks and up again, in turns: a V for two stages per rank, else a zig-zag.

            4 ranks, 2 stages each      rank 0:  0 7      at a turn two stages of one rank follow
                                        rank 1:  1 6      each other, and the value between them
                                        rank 2:  2 5      needs no transfer
                                        rank 3:  3 4

        With an even number of stages per rank a stage and its mirror image share a rank, as a
        U-Net's encoder level and its decoder level do: the skip between them is handed over locally.

        Raises:
            ValueError: if there is no rank or no stage.
        """
        _require_some(ranks=ranks, stages_per_rank=stages_per_rank)
        down = tuple(range(ranks))
        legs = (down[::-1] if leg % 2 else down for leg in range(stages_per_rank))
        return cls(tuple(rank for leg in legs for rank in leg))

    def rank_of(self, stage: int, micro_batch: int = 0) -> int:
        """The rank that runs a stage (for a micro-batch, where there are replicas)."""
        return self.ranks_for(micro_batch)[stage]

    def ranks_for(self, micro_batch: int) -> tuple[int, ...]:
        """Stage → rank, of the copy that a micro-batch runs through."""
        copy = self.copy_of[micro_batch] if micro_batch < len(self.copy_of) else 0
        return self.replicas[copy - 1] if copy else self.ranks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages a rank runs, ascending."""
        copies = (self.ranks, *self.replicas)
        return tuple(sorted({s for copy in copies for s, at in enumerate(copy) if at == rank}))

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return 1 + max(max(copy) for copy in (self.ranks, *self.replicas))


def _are_numbers(values: object) -> bool:
    """Whether it is a tuple of whole numbers from 0 on."""
    return isinstance(values, tuple) and all(is_whole(value) and value >= 0 for value in values)


def _require_some(**counts: int) -> None:
    for name, count in counts.items():
        if not is_whole(count) or count < 1:
            raise ValueError(f"a placement needs {name} of 1 or more, got {count!r}")
