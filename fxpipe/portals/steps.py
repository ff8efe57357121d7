"""What each stage executes: single nodes, and calls of the user's modules that no cut divides."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import torch.fx

from fxpipe import ops
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.spec import TensorSpec, ValueSpec
from fxpipe.portals.calls import ModuleCall, module_calls, nodes_in

Step: TypeAlias = "torch.fx.Node | ModuleCall"


def reads(step: Step) -> tuple[torch.fx.Node, ...]:
    """The nodes whose values a step needs."""
    return step.reads if isinstance(step, ModuleCall) else tuple(step.all_input_nodes)


def output_nodes(capture: Capture) -> tuple[torch.fx.Node, ...]:
    """The nodes that the model returns."""
    return nodes_in(next(node for node in capture.graph.nodes if node.op == "output").args[0])


def stage_steps(capture: Capture, plan: PartitionPlan) -> tuple[tuple[Step, ...], ...]:
    """The steps of every stage, in order.

    The outermost module calls that lie whole in a stage, and that can be made again from what the
    recording knows of them, take the place of their nodes. What nobody reads any more (a batch size
    that only the module itself asks for, the unused part of a result) is left out.
    """
    calls = {call.nodes[0]: call for call in module_calls(capture, plan)}
    replaced = {node for call in calls.values() for node in call.nodes}
    steps: list[list[Step]] = [[] for _ in range(plan.num_stages)]
    for node in capture.body:
        if node in calls:
            steps[plan.stages[node.name]].append(calls[node])
        elif node not in replaced:
            steps[plan.stages[node.name]].append(node)
    return _without_idle(steps, output_nodes(capture))


def _without_idle(
    steps: Sequence[Sequence[Step]], outputs: tuple[torch.fx.Node, ...]
) -> tuple[tuple[Step, ...], ...]:
    needed = set(outputs)
    kept: list[tuple[Step, ...]] = []
    for stage in reversed(steps):
        alive: list[Step] = []
        for step in reversed(stage):
            if isinstance(step, torch.fx.Node) and step not in needed and is_idle(step):
                continue
            if isinstance(step, ModuleCall):
                step = replace(step, writes=tuple(n for n in step.nodes if n in needed))
            alive.append(step)
            needed.update(reads(step))
        kept.append(tuple(reversed(alive)))
    return tuple(reversed(kept))


def is_idle(node: torch.fx.Node) -> bool:
    """Whether nothing is lost if a node that nobody reads is left out.

    That holds for numbers computed from sizes, and for taking a part out of a container; anything
    else might fail, write or draw.
    """
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel", "ndimension") and _is_number(node)
    if node.op != "call_function":
        return False
    if node.target in (operator.getitem, getattr):
        holder = node.all_input_nodes[:1]
        return _is_number(node) or not any(_is_tensor(held) for held in holder)
    return node.target in _ARITHMETIC and _is_number(node)


_ARITHMETIC: Final = (
    ops.affine,
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod),
    *(operator.neg, min, max, int),
)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("spec"), TensorSpec)


def _is_number(node: torch.fx.Node) -> bool:
    def is_plain(spec: ValueSpec) -> bool:
        if isinstance(spec, tuple):
            return bool(spec) and all(map(is_plain, spec))
        return isinstance(spec, int | float)

    return is_plain(node.meta.get("spec"))
