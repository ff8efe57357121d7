"""`Schedule`: what every rank computes, in order. It does not say when: there are no bubbles in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Final

from fxpipe.errors import ScheduleError
from fxpipe.ir.action import Cell, Compute, Fused, Kind, Update, cell_from_text, computes_of
from fxpipe.ir.plan import Placement


@dataclass(frozen=True)
class Schedule:
    """Per rank, the cells in order. The value users write, searches find, pictures show.

    Attributes:
        ranks: per rank, computations, fused cells of several, and updates.
        name: what it is called.
        replicas: copies of every stage, on ranks of their own; each micro-batch runs through one.

    Raises:
        ScheduleError: if it holds anything but cells, or there is no copy of the stages.
    """

    ranks: tuple[tuple[Cell, ...], ...]
    name: str = ""
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ScheduleError(
                f"a schedule has one copy of every stage or more, not {self.replicas}"
            )
        for rank, cells in enumerate(self.ranks):
            for position, cell in enumerate(cells):
                if type(cell) not in _CELLS:
                    raise ScheduleError(
                        f"rank {rank}, position {position}: {cell!r} is a {type(cell).__name__}, no "
                        "Compute, Fused or Update; lines of text are read by Schedule.from_text"
                    )

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @cached_property
    def computes(self) -> tuple[tuple[Compute, ...], ...]:
        """Per rank, the computations in order: cells opened, updates left out."""
        return tuple(
            tuple(action for cell in cells for action in computes_of(cell)) for cells in self.ranks
        )

    @cached_property
    def num_stages(self) -> int:
        """Number of stages that have an action."""
        return 1 + max((a.stage for rank in self.computes for a in rank), default=-1)

    @cached_property
    def num_micro_batches(self) -> int:
        """Number of micro-batches that have an action."""
        return 1 + max((a.micro_batch for rank in self.computes for a in rank), default=-1)

    @cached_property
    def has_backward(self) -> bool:
        """Whether any action is a backward (False: forward only)."""
        forwards = (Kind.FORWARD, Kind.RECOMPUTE)
        return any(a.kind not in forwards for rank in self.computes for a in rank)

    @cached_property
    def splits_backward(self) -> bool:
        """Whether any backward is split into that of inputs and that of weights."""
        halves = (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        return any(a.kind in halves for rank in self.computes for a in rank)

    @cached_property
    def ascends(self) -> bool:
        """Whether every stage of every rank takes its micro-batches in ascending order.

        That holds for each kind of action, a full backward counting as both its halves. Sums over
        micro-batches then have the order of a plain loop.
        """
        last: dict[tuple[int, int, str], int] = {}
        for rank, actions in enumerate(self.computes):
            for action in actions:
                for kind in "IW" if action.kind is Kind.BACKWARD else action.kind:
                    key = (rank, action.stage, kind)
                    if last.get(key, -1) >= action.micro_batch:
                        return False
                    last[key] = action.micro_batch
        return True

    @cached_property
    def placement(self) -> Placement:
        """The rank of every stage: where its actions stand.

        Raises:
            ScheduleError: if a stage has no actions, or some micro-batch none of it where there are
                replicas.
        """
        homes: dict[int, dict[int, int]] = {}
        for rank, actions in enumerate(self.computes):
            for action in actions:
                copy = action.micro_batch if self.replicas > 1 else 0
                homes.setdefault(copy, {}).setdefault(action.stage, rank)
        copies: dict[tuple[int, ...], int] = {}
        copy_of = []
        for micro_batch, where in sorted(homes.items()):
            if len(where) < self.num_stages:
                missing = next(stage for stage in count() if stage not in where)
                of = f" for micro-batch {micro_batch}" if self.replicas > 1 else ""
                raise ScheduleError(f"no rank runs stage {missing}{of}")
            ranks = tuple(where[stage] for stage in range(self.num_stages))
            copy_of.append(copies.setdefault(ranks, len(copies)))
        first, *others = copies or [()]
        return Placement(first, tuple(others), tuple(copy_of) if others else ())

    @classmethod
    def from_text(cls, text: str, name: str = "", replicas: int | None = None) -> Schedule:
        """One line per rank, cells separated by spaces or commas: ``0F0 0F1 0B0 0B1``.

        What follows a ``#`` is left out; the line ``# replicas: 2`` is how `to_text` says that there are
        two copies of every stage.

        The CSV files of torch.distributed.pipelining are such texts (`fxpipe.ir.torch_order` reads
        those with transfers in them, too).

        Args:
            text: the lines.
            name: of the schedule.
            replicas: copies of every stage; what the text says, or one, if None.

        Raises:
            ScheduleError: if words are no cells, where the message lists rank and position of each; if
                there is none, or no number of copies where the text says that there is one.
        """
        lines = [line.strip() for line in text.splitlines()]
        bare = (line.partition("#")[0].strip() for line in lines)
        rows = [line.replace(",", " ").split() for line in bare if line]
        problems: list[str] = []
        ranks = tuple(tuple(_cells(rank, row, problems)) for rank, row in enumerate(rows))
        title = f"schedule {name!r}" if name else "the schedule"
        if not rows:
            raise ScheduleError(f"{title} has no actions in it: a line per rank, such as 0F0 0B0")
        if problems:
            listed = [f"  - {problem}" for problem in problems[:_LISTED]]
            if len(problems) > _LISTED:
                listed.append(f"  - … and {len(problems) - _LISTED} more")
            raise ScheduleError("\n".join([f"{title} cannot be read:", *listed]))
        return cls(ranks, name, _copies(lines) if replicas is None else replicas)

    def to_text(self) -> str:
        """The text that `from_text` reads: a line per rank, after one with the copies if any."""
        head = f"# replicas: {self.replicas}\n" if self.replicas > 1 else ""
        return f"{head}{self}"

    def __str__(self) -> str:
        return "\n".join(" ".join(map(str, rank)) for rank in self.ranks)


_CELLS: Final = frozenset((Compute, Fused, Update))
_REPLICAS: Final = re.compile(r"#\s*replicas\s*:\s*(.*)")
_LISTED: Final = 10
"""Words listed at most: a text of another kind has nothing else."""


def _cells(rank: int, words: list[str], problems: list[str]) -> Iterator[Cell]:
    """The cells of a line; what is none goes to the problems."""
    for position, word in enumerate(words):
        try:
            yield cell_from_text(word)
        except ValueError as error:
            problems.append(f"rank {rank}, position {position}: {error}")


def _copies(lines: list[str]) -> int:
    """How many copies of every stage the lines say that there are."""
    found = next(filter(None, map(_REPLICAS.fullmatch, lines)), None)
    if found is None:
        return 1
    if not found[1].isdecimal():
        raise ScheduleError(
            f"{found[0]!r}: replicas must be a number, that of the copies of every stage"
        )
    return int(found[1])
