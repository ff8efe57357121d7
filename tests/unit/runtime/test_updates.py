from __future__ import annotations

import torch
from torch import nn

from fxpipe.ir.stage import StageProgram
from fxpipe.runtime.devices import open_lane
from fxpipe.runtime.ports import Ports
from fxpipe.runtime.stage import StageRunner
from fxpipe.runtime.updates import own_parameters
from fxpipe.runtime.weights import StageWeights
from tests.unit.runtime.stages import HandWritten, chain


def runner(model: nn.Module, of: StageProgram, graph: object, rank: int, copy: bool) -> StageRunner:
    lane = open_lane(torch.device("cpu"))
    weights = StageWeights(
        model,
        of,
        {},
        lambda _, bindings: HandWritten(lambda x: x, bindings),
        device=lane.device,
        rank=rank,
        is_copy=copy,
    )
    ports = Ports.of(of, graph, ["x"])  # type: ignore[arg-type]
    return StageRunner(of, ports, weights, lane, is_last=of.stage == 1)


def test_a_stage_updates_what_nobody_else_reads() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in "abc"})
    model["c"].weight = model["a"].weight
    model["b"].register_buffer("table", torch.ones(1))
    graph, (first, second) = chain(2)
    first.modules.update(a="a", b="b")  # type: ignore[attr-defined]
    second.modules.update(c="c")  # type: ignore[attr-defined]
    runners = [runner(model, first, graph, 0, False), runner(model, second, graph, 1, False)]
    b = model["b"]
    assert own_parameters(runners) == {0: [model["a"].bias, b.weight, b.bias], 1: [model["c"].bias]}
    # Variants of a stage run in turn, on one rank.
    assert own_parameters([*runners, runner(model, first, graph, 0, False)]) == own_parameters(
        runners
    )
    # A copy's gradients come at the end of the step, alone or not.
    copied = runner(model, first, graph, 1, True)
    assert own_parameters([*runners, copied]) == {1: [model["c"].bias]}
    assert own_parameters([copied, runners[1]]) == {1: [model["c"].bias]}
