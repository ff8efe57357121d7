from __future__ import annotations

import linecache
import traceback
from dataclasses import replace

import pytest
import torch
from torch import nn

from fxpipe.codegen.generate import generate
from fxpipe.codegen.load import file_name, load, needed
from fxpipe.errors import CodegenError
from fxpipe.ir.stage import StageProgram
from fxpipe.portals.edges import link
from tests.builders import bindings_of, build_capture, plan_at


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return (self.linear(x) * self.weight).view(2, 2)


@pytest.fixture
def made() -> tuple[StageProgram, dict[str, object]]:
    model = Small()
    capture = build_capture(model, torch.randn(2, 2))
    plan = plan_at(capture)
    (program,) = generate(capture, plan, link(capture, plan), model)
    return program, bindings_of(program, model, capture)


def test_the_stage_holds_the_very_objects(made) -> None:
    program, bindings = made
    stage = load(program, bindings)
    assert needed(program) == ("linear", "weight")
    assert stage.linear is bindings["linear"]
    assert stage.weight is bindings["weight"]


@pytest.mark.parametrize("name", ["linear", "weight"])
def test_a_missing_binding(made, name: str) -> None:
    program, bindings = made
    del bindings[name]
    with pytest.raises(CodegenError, match=f"stage 0 is not bound to {name}"):
        load(program, bindings)


def test_keys_and_device_have_to_be_bound_where_named(made) -> None:
    program, bindings = made
    del bindings["keyed"], bindings["device"]
    load(program, bindings)
    with pytest.raises(CodegenError, match="not bound to keyed, device"):
        load(replace(program, needs_keys=True, needs_device=True), bindings)


def test_source_without_the_class(made) -> None:
    program, bindings = made
    with pytest.raises(CodegenError, match="defines no class Stage7"):
        load(replace(program, class_name="Stage7"), bindings)


def test_source_that_does_not_compile(made) -> None:
    program, bindings = made
    with pytest.raises(CodegenError, match="stage 0 does not compile"):
        load(replace(program, source="class Stage0:\n  def"), bindings)


def test_tracebacks_show_the_source(made) -> None:
    program, bindings = made
    stage = load(program, bindings)
    with pytest.raises(RuntimeError) as raised:
        stage.forward(None, None, torch.randn(3, 2))
    frame = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert frame.filename == file_name(program)
    assert frame.line is not None
    assert "mul.view(2, 2)" in frame.line
    assert "the model, test_load.py" in program.lines[frame.lineno]
    linecache.checkcache()
    assert linecache.getline(frame.filename, frame.lineno).strip() == frame.line


def test_equal_sources_share_a_name(made) -> None:
    program, _ = made
    assert file_name(program) == file_name(replace(program))
    assert file_name(program) != file_name(replace(program, source=program.source + "\n"))
