"""Plans for further situations of a model: no weight leaves the stage where the first plan put it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import torch.fx

from fxpipe.analysis.cuts import describe, legal_cuts
from fxpipe.analysis.liveness import alive_bytes
from fxpipe.errors import PartitionError
from fxpipe.partitioners.assemble import anchor_keys, plan_of
from fxpipe.partitioners.linear import divided_calls
from fxpipe.partitioners.places import leaf_calls

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture
    from fxpipe.ir.plan import PartitionPlan


Score: TypeAlias = tuple[int, int, int]
"""How unfit a place is: 1 if another node started the stage, module calls divided, bytes that cross."""
_AT_THE_END: Final[Score] = (1, 0, 0)
Way: TypeAlias = tuple[Score, tuple[int, ...]]

_MISFIT: Final = (
    "this call of the model does not fit the stages that its first call was cut into, and weights do "
    "not move afterwards"
)
_ADVICE: Final = "capture this kind of call first, or give `cuts` that suit both"


def follow(plan: PartitionPlan, first_capture: Capture, capture: Capture) -> PartitionPlan:
    """A plan for another capture of the same model, under which every weight stays where it is.

    Each cut lies between the last module call of the stages before it and the first of those after it.
    Within that room it goes where the first plan had it, if that node is there again, else where it
    divides the fewest module calls and the fewest bytes cross. Where there is no such place (evaluation
    leaves out a head that is a stage of its own), a stage stays idle: it has no node.

    Args:
        plan: for `first_capture`, with its anchors.
        first_capture: the situation that decided the placement.
        capture: another one: eval mode, another sequence length, other arguments.

    Raises:
        PartitionError: if this capture calls the modules in another order than the stages have them, or
            cannot be cut between the modules of two stages.
    """
    legal = legal_cuts(capture)
    # Training may change buffers that evaluation, of the same text, reads: fewer cuts are legal.
    if capture.fingerprint() == plan.fingerprint and set(_cuts(plan, capture)).issubset(legal):
        return plan
    anchors = _anchors(plan, first_capture)
    stage_of = _bound_stages(anchors, capture)
    room = _Room(stage_of, plan.num_stages, legal, _scores(plan, first_capture, capture))
    cuts = room.choose()
    if cuts is None:
        cuts = room.with_idle_stages().choose()
    if cuts is None:
        raise PartitionError(_why_not(capture, stage_of, plan.num_stages))
    return plan_of(capture, cuts, anchors)


def _cuts(plan: PartitionPlan, capture: Capture) -> list[int]:
    """Where the stages of a plan for this capture begin, but the first."""
    stages = [plan.stages[node.name] for node in capture.body]
    return [at for at in range(1, len(stages)) if stages[at] != stages[at - 1]]


def _anchors(plan: PartitionPlan, first: Capture) -> dict[str, int]:
    """The plan's anchors; if it was saved without any, all module calls of the first capture."""
    if plan.anchors:
        return dict(plan.anchors)
    return {key: plan.stages[name] for name, keys in anchor_keys(first).items() for key in keys}


def _bound_stages(anchors: Mapping[str, int], capture: Capture) -> list[int | None]:
    """For each node of the body, the stage its weights are in; None if it may go anywhere.

    Raises:
        PartitionError: if a node reads weights of two stages.
    """
    keys = anchor_keys(capture)
    found: list[int | None] = []
    for node in capture.body:
        stages = {anchors[key] for key in keys.get(node.name, ()) if key in anchors}
        if len(stages) > 1:
            raise PartitionError(
                f"{_MISFIT}: {describe(node)} reads weights of stages {sorted(stages)}; {_ADVICE}"
            )
        found.append(next(iter(stages), None))
    return found


def _scores(plan: PartitionPlan, first: Capture, capture: Capture) -> list[list[Score]]:
    """For each cut of the plan and each position of the capture, how unfit it is: the least is best."""
    first_keys, keys = _node_keys(first), _node_keys(capture)
    starts: dict[int, object] = {}
    for node, key in zip(first.body, first_keys, strict=True):
        starts.setdefault(plan.stages[node.name], key)
    divided, crossing = divided_calls(capture), alive_bytes(capture)
    return [
        [
            (int(key != starts[stage]), divided[position], crossing[position])
            for position, key in enumerate(keys)
        ]
        for stage in range(1, plan.num_stages)
    ]


def _node_keys(capture: Capture) -> list[tuple[object, ...]]:
    """What makes a node the same in two captures: its module call, target and place among its like."""
    counts: dict[tuple[object, ...], int] = {}
    found: list[tuple[object, ...]] = []
    for node, (path, call) in zip(capture.body, leaf_calls(capture.body), strict=True):
        key: tuple[object, ...] = (path, call)
        if path is None:
            key = (node.meta.get("path"), node.meta.get("call"), node.op, node.target)
            counts[key] = counts.get(key, 0) + 1
            key = (*key, counts[key])
        found.append(key)
    return found


@dataclass(frozen=True)
class _Room:
    """Where each cut may go, and what speaks for a place there.

    `least`: how many nodes a stage has at least.
    """

    stage_of: Sequence[int | None]
    num_stages: int
    legal: Sequence[int]
    scores: Sequence[Sequence[Score]]
    least: int = 1

    def with_idle_stages(self) -> _Room:
        """The same, where stages may start at one place, or at the very end."""
        end = len(self.stage_of)
        ended = [(*scores, _AT_THE_END) for scores in self.scores]
        return replace(self, legal=(0, *self.legal, end), scores=ended, least=0)

    def choose(self) -> tuple[int, ...] | None:
        """The best ascending cuts; None if there is no room for them."""
        best: dict[int, Way] = {0: ((0, 0, 0), ())}
        for stage in range(1, self.num_stages):
            best = self._extend(best, stage)
        return min(best.values())[1] if best else None

    def _extend(self, best: dict[int, Way], stage: int) -> dict[int, Way]:
        """For each place of one more cut, the best way to place those before it, and it."""
        low, high = self._window(stage)
        waiting = sorted(best.items(), reverse=True)
        before: list[Way] = []
        found: dict[int, Way] = {}
        for position in self.legal:
            while waiting and waiting[-1][0] + self.least <= position:
                before = [min((*before, waiting.pop()[1]))]
            if low <= position <= high and before:
                (far, divided, nbytes), cuts = before[0]
                score = self.scores[stage - 1][position]
                total = (far + score[0], divided + score[1], nbytes + score[2])
                found[position] = (total, (*cuts, position))
        return found

    def _window(self, stage: int) -> tuple[int, int]:
        """After all nodes bound to earlier stages, not after any bound to this one or later."""
        bound = [(i, at) for i, at in enumerate(self.stage_of) if at is not None]
        last = len(self.stage_of) - self.least
        low = max((i + 1 for i, at in bound if at < stage), default=self.least)
        high = min((i for i, at in bound if at >= stage), default=last)
        return low, high


def _why_not(capture: Capture, stage_of: Sequence[int | None], stages: int) -> str:
    latest: tuple[int, torch.fx.Node] | None = None
    for node, stage in zip(capture.body, stage_of, strict=True):
        if stage is None:
            continue
        if latest is not None and stage < latest[0]:
            return (
                f"{_MISFIT}: {describe(node)} of stage {stage} runs after {describe(latest[1])} of "
                f"stage {latest[0]}; {_ADVICE}"
            )
        latest = (stage, node)
    return (
        f"{_MISFIT}: between the modules of two stages there is no place where it may be cut, for "
        f"some of the {stages - 1} cuts; {_ADVICE}"
    )
