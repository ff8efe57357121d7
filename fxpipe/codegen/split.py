"""The part of a stage: what it executes, what comes in, what goes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch.fx

from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.stage import StageGraph
from fxpipe.portals.steps import Step, stage_steps


@dataclass(frozen=True)
class StagePart:
    """One stage, before it is written.

    Attributes:
        stage: its index.
        steps: what it executes, in order.
        nodes: all its nodes, those inside module calls too.
        inputs: values that come as arguments: the model's inputs, then values of the stage before.
        pops: portals it reads.
        outputs: values it returns.
        stashes: portals it makes.
    """

    stage: int
    steps: tuple[Step, ...]
    nodes: tuple[torch.fx.Node, ...]
    inputs: tuple[torch.fx.Node, ...]
    pops: tuple[torch.fx.Node, ...]
    outputs: tuple[torch.fx.Node, ...]
    stashes: tuple[torch.fx.Node, ...]


def split(capture: Capture, plan: PartitionPlan, graph: StageGraph) -> Iterator[StagePart]:
    """The parts of all stages, in order."""
    node = capture.node
    for stage, steps in enumerate(stage_steps(capture, plan)):
        reads, writes = graph.reads(stage), graph.writes(stage)
        outputs = [edge.value for edge in writes if not edge.is_portal]
        if stage == graph.num_stages - 1:
            outputs = [value for value in graph.outputs if value is not None]
        yield StagePart(
            stage=stage,
            steps=steps,
            nodes=tuple(n for n in capture.body if plan.stages[n.name] == stage),
            inputs=tuple(node(edge.value) for edge in reads if not edge.is_portal),
            pops=tuple(node(edge.value) for edge in reads if edge.is_portal),
            outputs=tuple(map(node, outputs)),
            stashes=tuple(node(edge.value) for edge in writes if edge.is_portal),
        )
