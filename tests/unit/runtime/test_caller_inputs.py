from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fxpipe.errors import ExecutionError
from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.runtime.activations import Frame
from fxpipe.runtime.caller_inputs import CallerInputs
from fxpipe.runtime.devices import open_lane
from fxpipe.runtime.ports import Ports
from tests.unit.runtime.stages import program


def inputs_of(stage: int, written: frozenset[str] = frozenset()) -> CallerInputs:
    """Both stages read x."""
    graph = StageGraph(2, (Edge("x", HOST, (0, 1)),), (), ("out",))
    ports = Ports.of(program(stage, ["x"], ["out"] if stage else []), graph, ["x"])
    return CallerInputs(ports, open_lane(torch.device("cpu")), stage, written)


def step(*given: Tensor, originals: dict[int, Tensor] | None = None) -> Any:
    return SimpleNamespace(inputs=[[x] for x in given], originals=originals or {})


def test_a_stage_reads_the_callers_tensor() -> None:
    x, frame = torch.ones(2), Frame(1, 0)
    inputs_of(0).read(frame, 1, step(torch.zeros(2), x))
    assert frame.inputs[0] is x


def test_the_first_stage_that_writes_works_on_copies() -> None:
    assert not inputs_of(0).writes
    assert not inputs_of(1, frozenset({"x"})).writes
    first = inputs_of(0, frozenset({"x"}))
    assert first.writes
    x, frame = torch.ones(2, requires_grad=True), Frame(1, 0)
    given = step(x)
    first.read(frame, 0, given)
    copies = first.put_copies(frame)
    assert frame.inputs[0].requires_grad
    with torch.no_grad():
        frame.inputs[0].add_(1)
    version = x._version
    assert x.tolist() == [1, 1]
    first.write_back(copies, 0, given)
    assert x.tolist() == [2, 2]
    assert x._version == version


def test_what_all_micro_batches_share_is_left_as_the_last_one_leaves_it() -> None:
    shared = torch.zeros(1)
    given = step(shared, shared, originals={0: torch.zeros(1)})
    first = inputs_of(0, frozenset({"x"}))
    for micro_batch, value, left in ((1, 2.0, 2.0), (0, 1.0, 2.0)):
        first.write_back([(0, torch.tensor([value]))], micro_batch, given)
        assert shared.item() == left


def test_an_input_that_changes_before_it_is_read_again_is_told() -> None:
    x, frame = torch.ones(2), Frame(1, 0)
    inputs = inputs_of(0)
    inputs.read(frame, 0, step(x))
    frame.versions = inputs.versions(frame)
    inputs.check_versions(frame)
    x.add_(1)
    with pytest.raises(ExecutionError, match=r"'x' has been changed in place since the forward"):
        inputs.check_versions(frame)
