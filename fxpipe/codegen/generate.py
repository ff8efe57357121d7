"""`generate`: the stages of a plan as Python source."""

from __future__ import annotations

import torch

from fxpipe.codegen.deferred import Deferred, deferred
from fxpipe.codegen.devices import Home
from fxpipe.codegen.header import header
from fxpipe.codegen.names import RESERVED
from fxpipe.codegen.source import StageSource
from fxpipe.codegen.split import StagePart, split
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.stage import StageGraph, StageProgram


def generate(
    capture: Capture,
    plan: PartitionPlan,
    graph: StageGraph,
    model: torch.nn.Module,
    *,
    split_backward: bool = False,
) -> tuple[StageProgram, ...]:
    """The source of every stage, with the names it has to be bound to.

    The same capture and plan give the same bytes.

    Args:
        capture: the recorded run.
        plan: a stage for each of its nodes.
        graph: what `fxpipe.portals.edges.link` made of the two.
        model: the recorded model; only its names and the devices of its tensors are looked at.
        split_backward: whether the gradients of weights are to be computed apart from those of inputs:
            for schedules with input and weight backwards.

    Raises:
        CodegenError: if a node has no text.
    """
    home = Home(model)
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    programs = []
    for part in split(capture, plan, graph):
        put_off = deferred(part, model) if split_backward else Deferred()
        source = _source(part, capture, home, put_off)
        programs.append(
            source.program(header(part, capture, plan, graph, put_off.left), parameters)
        )
    return tuple(programs)


def _source(part: StagePart, capture: Capture, home: Home, put_off: Deferred) -> StageSource:
    reserved = set(RESERVED)
    while True:
        source = StageSource(part, capture, home, reserved, put_off)
        if source.imports.roots <= reserved:
            return source
        reserved |= (
            source.imports.roots
        )  # a value may be named like a module to import: name it anew
