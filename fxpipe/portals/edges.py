"""`link`: a plan becomes the graph of its stages, every value that crosses an edge of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch.fx

from fxpipe.errors import IllegalPlanError
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.portals.steps import output_nodes, reads, stage_steps


def link(capture: Capture, plan: PartitionPlan) -> StageGraph:
    """The stages of `plan` and the values between them.

    A value that several stages read is one edge. What an earlier stage makes and the model returns is
    read by the last stage, which hands the result to the caller; so is an input returned as it came.
    Parameters, buffers and constants never cross: every stage that reads one is bound to it.

    Args:
        capture: the recorded run.
        plan: a stage for each node of ``capture.body``.

    Raises:
        IllegalPlanError: if the plan was made for another capture, leaves out or adds nodes, or sends a
            node to an earlier stage than the one before it; the message lists every such fault.
    """
    faults = list(_faults(capture, plan))
    if faults:
        raise IllegalPlanError("the plan does not fit the capture:\n  • " + "\n  • ".join(faults))
    consumers = _consumers(capture, plan)
    inputs: list[Edge] = []
    edges: list[Edge] = []
    for node in capture.graph.nodes:
        if node in consumers:
            producer = plan.stages.get(node.name, HOST)
            edge = Edge(node.name, producer, tuple(sorted(consumers[node])), node.meta.get("spec"))
            (inputs if producer == HOST else edges).append(edge)
    leaves = _output_leaves(capture)
    return StageGraph(
        num_stages=plan.num_stages,
        inputs=tuple(inputs),
        edges=tuple(edges),
        outputs=tuple(leaf.name if isinstance(leaf, torch.fx.Node) else None for leaf in leaves),
        constants={
            index: leaf for index, leaf in enumerate(leaves) if not isinstance(leaf, torch.fx.Node)
        },
    )


def _consumers(capture: Capture, plan: PartitionPlan) -> dict[torch.fx.Node, set[int]]:
    """Node → the stages that need its value handed to them."""
    found: dict[torch.fx.Node, set[int]] = {}

    def read(node: torch.fx.Node, stage: int) -> None:
        if node.op != "get_attr" and plan.stages.get(node.name, HOST) != stage:
            found.setdefault(node, set()).add(stage)

    for stage, steps in enumerate(stage_steps(capture, plan)):
        for step in steps:
            for node in reads(step):
                read(node, stage)
    for node in output_nodes(capture):
        read(node, plan.num_stages - 1)
    return found


def _output_leaves(capture: Capture) -> tuple[object, ...]:
    output = next(node for node in capture.graph.nodes if node.op == "output")
    leaves = output.args[0]
    return tuple(leaves) if isinstance(leaves, (tuple, list)) else (leaves,)


def _faults(capture: Capture, plan: PartitionPlan) -> Iterator[str]:
    body = [node.name for node in capture.body]
    fingerprint = capture.fingerprint()
    if plan.fingerprint != fingerprint:
        yield (
            f"it was made for the capture {plan.fingerprint or '(none)'}, and this one is "
            f"{fingerprint}: partition again"
        )
    if not body:
        yield "the capture computes nothing: there is no node to put in a stage"
    known = set(body)
    for name in body:
        if name not in plan.stages:
            yield f"{name} has no stage"
    for name in plan.stages:
        if name not in known:
            yield f"{name} is no node of the capture that computes"
    planned = [name for name in body if name in plan.stages]
    for before, name in pairwise(planned):
        if plan.stages[name] < plan.stages[before]:
            yield (
                f"{name} is in stage {plan.stages[name]}, but {before} before it is already in stage "
                f"{plan.stages[before]}"
            )
