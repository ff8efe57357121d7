"""Positions of cuts → `PartitionPlan`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from fxpipe.ir.plan import NOWHERE, PartitionPlan
from fxpipe.partitioners.places import Places, leaf_calls

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture
    from fxpipe.ir.cost import CostProfile


def plan_of(
    capture: Capture, cuts: Sequence[int], anchors: dict[str, int] | None = None
) -> PartitionPlan:
    """The plan whose stages start at 0 and at every cut, which ascend.

    A stage that starts where the next one does, or after the last node, is idle.
    """
    places = Places(capture)
    idle = tuple(
        s for s, (start, end) in enumerate(pairwise((0, *cuts, len(capture.body)))) if start == end
    )
    return PartitionPlan(
        stages={node.name: bisect_right(cuts, i) for i, node in enumerate(capture.body)},
        fingerprint=capture.fingerprint(),
        starts=tuple(
            NOWHERE if stage in idle else places.name(cut) for stage, cut in enumerate(cuts, 1)
        ),
        anchors=anchors or {},
        idle=idle,
    )


def anchored(capture: Capture, costs: CostProfile, plan: PartitionPlan) -> dict[str, int]:
    """``"path#call"`` of every module call with weights → its stage, for `PartitionPlan.anchors`.

    A parameter that a function reads counts as a module of its name, called once per reader.
    """
    weighty = {name for name, nbytes in costs.parameter_bytes.items() if nbytes}
    return {
        key: plan.stages[name]
        for name, keys in anchor_keys(capture, weighty).items()
        for key in keys
    }


def anchor_keys(capture: Capture, weighty: Collection[str] | None = None) -> dict[str, list[str]]:
    """Node → the anchors it stands for; modules only where the node is among `weighty`, if given."""
    keys: dict[str, list[str]] = {}
    reads: dict[str, int] = {}
    for node, (path, call) in zip(capture.body, leaf_calls(capture.body), strict=True):
        found = []
        keeps = weighty is None or node.name in weighty or bool(node.meta.get("buffers"))
        if path is not None and keeps:
            found.append(f"{path}#{call}")
        for source in node.all_input_nodes:
            target = str(source.target)
            if source.op == "get_attr" and target not in capture.constants:
                # A buffer binds nothing: it may be read on several stages.
                if weighty is None or node.name in weighty:
                    found.append(f"{target}#{reads.get(target, 0)}")
                reads[target] = reads.get(target, 0) + 1
        if found:
            keys[node.name] = found
    return keys
