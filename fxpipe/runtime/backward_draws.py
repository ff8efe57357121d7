"""Random numbers drawn in a backward: by a hand-written `torch.autograd.Function`, or a hook.

They have keys like those of a forward. autograd runs the nodes of a micro-batch from the last made to
the first, whatever the stages are, so a draw is known by how many came before it:

    stage 2:  draws 0, 1      ──►  stage 1:  draws 2, 3, 4      ──►  stage 0:  draws 5, 6

Each stage goes on counting where those have ended that its gradients come from. To give draws keys,
every operator has to be looked at: that is done in the first backward of a stage, and in all others if
one has drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from fxpipe.runtime.keyed import KeyedMode
from fxpipe.runtime.ports import Ports
from fxpipe.runtime.reentry import checkpoints_around, may_be_in_checkpoint
from fxpipe.runtime.rng import mix, scope_hash

if TYPE_CHECKING:
    from fxpipe.runtime.step import Step

_SCOPE: Final = scope_hash("backward")
_COMPILED: Final = "CompiledFunction"
"""How names of nodes begin whose backward is compiled when it first runs."""


@dataclass(frozen=True)
class Drawn:
    """What has been drawn when the backward of a stage has ended.

    Attributes:
        count: how often.
        stages: whose backwards that counts.
    """

    count: int = 0
    stages: frozenset[int] = frozenset()


class BackwardDraws:
    """The keys of what backwards of one stage draw.

    Args:
        stage: its index.
        ports: where its values are found.
    """

    def __init__(self, stage: int, ports: Ports) -> None:
        self._stage = stage
        edges = [edge for edge in (*ports.writes, *ports.reads) if edge.is_differentiable]
        later = (edge.next_reader(stage) for edge in edges)
        self._later = frozenset(each for each in later if each is not None)
        self._looks = True
        self._draws = False

    def pass_on(self, step: Step, micro_batch: int) -> None:
        """The stage has nothing to run backward."""
        self._end(step, micro_batch, self._begin(step, micro_batch).count)

    @contextmanager
    def keyed(self, step: Step, micro_batch: int, starts: Iterable[Any]) -> Iterator[None]:
        """Around a backward.

        Args:
            step: the step.
            micro_batch: of the backward.
            starts: tensors and gradient edges where it starts.
        """
        begin = self._begin(step, micro_batch)
        if not self._draws and not (self._looks and not _is_compiled(starts)):
            self._looks = False
            yield
            self._end(step, micro_batch, begin.count)
            return
        self._looks = False
        key = mix(mix(step.key, micro_batch), _SCOPE)
        if len(begin.stages) < len(step.frames) - 1 - self._stage:  # beside others, not after them
            key = mix(key, self._stage)
        mode = _BackwardMode(key, begin.count)
        with mode:
            yield
        self._draws = self._draws or mode.draws > begin.count
        self._end(step, micro_batch, mode.draws)

    def _begin(self, step: Step, micro_batch: int) -> Drawn:
        before = [step.drawn.get((stage, micro_batch), Drawn()) for stage in self._later]
        count = max((each.count for each in before), default=0)
        return Drawn(count, frozenset().union(*(each.stages for each in before)))

    def _end(self, step: Step, micro_batch: int, count: int) -> None:
        stages = self._begin(step, micro_batch).stages | {self._stage}
        step.drawn[self._stage, micro_batch] = Drawn(count, stages)


class _BackwardMode(KeyedMode):  # type: ignore[no-untyped-call]
    """Leaves alone what a checkpoint of the user's draws again, which must be what forward drew."""

    @property
    def draws(self) -> int:
        """The ordinal of the next draw."""
        return self._draw

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The operator's result."""
        if may_be_in_checkpoint() and checkpoints_around()[1] is not None:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _is_compiled(starts: Iterable[Any]) -> bool:
    """Whether a graph holds a part whose backward is compiled: no mode is to be around that."""
    if "torch._dynamo" not in sys.modules:
        return False
    waiting: list[Node | None] = [
        start.node if isinstance(start, GradientEdge) else start.grad_fn
        for start in starts
        if isinstance(start, GradientEdge | Tensor)
    ]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name().startswith(_COMPILED):
            return True
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)
    return False
