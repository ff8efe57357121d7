"""From where to where each value is needed, and how many bytes are alive at every cut.

Positions count the nodes of ``Capture.body`` from 0. A cut at position i lies just before body[i].
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from fxpipe.ir.spec import is_differentiable, spec_bytes

if TYPE_CHECKING:
    import torch.fx

    from fxpipe.ir.capture import Capture


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Where a value is made and read.

    Attributes:
        value: name of the node that makes it.
        made: its position; -1 for a model input.
        reads: positions of the nodes that read it, ascending. What the caller gets back is handed out
            by the last stage, so a model output is read at the last position too.
        nbytes: its size at the recorded batch size.
        differentiable: whether its gradient comes back.
    """

    value: str
    made: int
    reads: tuple[int, ...]
    nbytes: int
    differentiable: bool

    @property
    def last(self) -> int:
        """Position of the last node that needs it: its maker's if nobody reads it."""
        return self.reads[-1] if self.reads else self.made


def lifetimes(capture: Capture) -> tuple[Lifetime, ...]:
    """The lifetimes of the model inputs and of every value of the body, in recorded order."""
    position = positions(capture)
    return tuple(
        _lifetime(node, position)
        for node in capture.graph.nodes
        if node.op == "placeholder" or node in position
    )


def positions(capture: Capture) -> dict[torch.fx.Node, int]:
    """Node → its place in the body."""
    return {node: index for index, node in enumerate(capture.body)}


def alive_bytes(capture: Capture) -> tuple[int, ...]:
    """Bytes that cross a cut at each position 0 … len(body): values made before it and read after.

    Model inputs are left out: they come from the caller wherever they are read.
    """
    size = len(capture.body)
    change = [0] * (size + 2)
    for life in lifetimes(capture):
        if life.made >= 0 and life.last > life.made:
            change[life.made + 1] += life.nbytes
            change[life.last + 1] -= life.nbytes
    return tuple(accumulate(change[: size + 1]))


def _lifetime(node: torch.fx.Node, position: dict[torch.fx.Node, int]) -> Lifetime:
    made = position.get(node, -1)
    last = len(position) - 1
    reads = {position[user] if user in position else last for user in node.users}
    spec = node.meta.get("spec")
    return Lifetime(
        value=node.name,
        made=made,
        reads=tuple(sorted(read for read in reads if read > made)),
        nbytes=spec_bytes(spec),
        differentiable=is_differentiable(spec),
    )
