"""A rig without recorder and code generator: stages written by hand, for tests of what runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph, StageProgram
from fxpipe.runtime.devices import open_lane
from fxpipe.runtime.ports import Ports
from fxpipe.runtime.stage import StageRunner
from fxpipe.runtime.weights import StageWeights

DIFFERENTIABLE = TensorSpec((2, 4), "float32", True)


def program(
    stage: int, inputs: Sequence[str], outputs: Sequence[str], **options: Any
) -> StageProgram:
    """A program whose source is never looked at."""
    fields: dict[str, Any] = {
        "source": "",
        "class_name": f"Stage{stage}",
        "pops": (),
        "stashes": (),
        "modules": {},
        "tensors": {},
        "constants": {},
    }
    fields.update(options)
    return StageProgram(stage=stage, inputs=tuple(inputs), outputs=tuple(outputs), **fields)


def chain(stages: int) -> tuple[StageGraph, list[StageProgram]]:
    """Stages that each read what the one before makes: x → v0 → v1 → …"""
    names = ["x", *(f"v{stage}" for stage in range(stages))]
    edges = tuple(Edge(names[s + 1], s, (s + 1,), DIFFERENTIABLE) for s in range(stages - 1))
    inputs = (Edge("x", HOST, (0,), TensorSpec((2, 4), "float32")),)
    programs = [program(s, [names[s]], [names[s + 1]]) for s in range(stages)]
    return StageGraph(stages, inputs, edges, (names[-1],)), programs


class HandWritten:
    """A stage whose forward is a function of its inputs."""

    def __init__(self, function: Callable[..., Any], bindings: Mapping[str, Any]) -> None:
        self.function = function
        self.__dict__.update(bindings)

    def forward(self, stash: Any, pop: Any, *inputs: Any) -> tuple[Any, ...]:
        result = self.function(*inputs)
        return result if isinstance(result, tuple) else (result,)


def as_it_is(program: StageProgram, bindings: Mapping[str, Any]) -> HandWritten:
    """A stage that hands on what it reads, with something bound to it."""
    return HandWritten(lambda x: x, bindings)


def runners(
    graph: StageGraph,
    programs: Sequence[StageProgram],
    functions: Sequence[Callable[..., Any]] | None = None,
    model: nn.Module | None = None,
) -> list[StageRunner]:
    """The stages, ready to run; each doubles its input if it is not told what to do."""
    made = []
    names = [edge.value for edge in graph.inputs]
    for at, each in enumerate(programs):
        function = functions[at] if functions else _double
        lane = open_lane(torch.device("cpu"))
        weights = StageWeights(
            model or nn.Module(),
            each,
            {},
            lambda _, bindings, f=function: HandWritten(f, bindings),
            device=lane.device,
        )
        ports = Ports.of(each, graph, names)
        made.append(StageRunner(each, ports, weights, lane, is_last=at == len(programs) - 1))
    return made


def _double(x: Tensor) -> Tensor:
    return x * 2
