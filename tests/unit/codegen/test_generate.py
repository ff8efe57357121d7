from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx.passes.split_module import split_module

from fxpipe.codegen.generate import generate
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import PartitionPlan
from fxpipe.portals.edges import link
from tests.builders import build_capture, load_stages, plan_at, run_stages
from tests.unit.codegen.models import SmallUNet


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 1, 8, 8), torch.ones(1)


def run(model: nn.Module, capture: Capture, plan: PartitionPlan, *args: torch.Tensor):
    graph = link(capture, plan)
    programs = generate(capture, plan, graph, model)
    return run_stages(load_stages(programs, model, capture), programs, graph, args)


class TestGolden:
    """The source a user reads."""

    @pytest.mark.parametrize("stage", [0, 1, 2])
    def test_small_unet(self, golden: Callable[[str, str], None], stage: int) -> None:
        model = SmallUNet()
        capture = build_capture(model, *inputs())
        plan = plan_at(capture, "enc2_norm", "up1")
        program = generate(capture, plan, link(capture, plan), model)[stage]
        golden(f"stages/small_unet/stage_{stage}.py", program.source)


@pytest.mark.parametrize("train", [True, False])
def test_every_cut_computes_the_same(train: bool) -> None:
    """Outputs, gradients and buffers are eager's, bit for bit, for every plan of two or three stages."""
    torch.manual_seed(0)
    model = SmallUNet().train(train)
    args = inputs()
    capture = build_capture(model, *args)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = list(model.parameters())

    def observed(call: Callable[[], tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model.load_state_dict(state)
        outputs = call()
        loss = sum((out * torch.arange(out.numel()).view(out.shape)).sum() for out in outputs)
        gradients = torch.autograd.grad(loss, parameters)
        return [*outputs, *gradients, *(buffer.clone() for buffer in model.buffers())]

    def eager() -> tuple[torch.Tensor, ...]:
        out = model(*args)
        return out["logits"], *out["features"]

    expected = observed(eager)
    names = [node.name for node in capture.body]
    plans = [(), *((name,) for name in names[1:]), *itertools.combinations(names[3::6], 2)]
    for starts in plans:
        plan = plan_at(capture, *starts)
        found = observed(lambda plan=plan: run(model, capture, plan, *args)[:3])
        for index, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert torch.equal(a, b), f"cut before {starts}: value {index} differs"


def test_twice_gives_the_same_bytes() -> None:
    model = SmallUNet()
    args = inputs()
    first, second = build_capture(model, *args), build_capture(model, *args)
    for capture in (first, second):
        assert capture == first
    plans = [plan_at(capture, "mid_conv", "up1") for capture in (first, second)]
    made = [
        generate(capture, plan, link(capture, plan), model)
        for capture, plan in zip((first, second), plans, strict=True)
    ]
    assert made[0] == made[1]


def test_the_program_says_what_it_is_bound_to() -> None:
    model = SmallUNet()
    capture = build_capture(model, *inputs())
    plan = plan_at(capture, "enc2_norm", "up1")
    first, second, third = generate(capture, plan, link(capture, plan), model)
    assert first.modules == {"enc1": "enc1", "enc2_conv": "enc2.conv"}
    assert second.stashes == ()
    assert second.modules["enc2_norm"] == "enc2.norm"
    assert third.tensors == {"scale": "scale", "shift": "shift"}
    assert third.inputs == ("weight", "dropout", "dec2_drop")
    assert third.pops == first.stashes == ("enc1_drop",)
    assert third.outputs == ("mul_1", "dropout", "enc1_drop", "weight")
    assert first.buffers == tuple(
        f"enc1.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    )


def test_lines_lead_to_the_user_s_source() -> None:
    model = SmallUNet()
    capture = build_capture(model, *inputs())
    plan = plan_at(capture, "mid_conv")
    programs = generate(capture, plan, link(capture, plan), model)
    source = programs[1].source.splitlines()
    (cat,) = (number for number, line in enumerate(source, 1) if "cat = torch.cat" in line)
    assert programs[1].lines[cat].startswith("the model, models.py:")
    (call,) = (number for number, line in enumerate(source, 1) if "self.dec2(" in line)
    assert programs[1].lines[call] == "dec2, call 0"


def apply(x: int, y: float) -> dict[str, float]:
    return {"x": x + y}


def test_imports_and_values_do_not_collide() -> None:
    """A value called as a module to import is renamed in the source, and only there."""
    model = nn.Module()
    graph = torch.fx.Graph()
    x = graph.placeholder("tests")
    y = graph.call_function(apply, (x, 1.0))
    y.name = "collections"
    z = graph.call_function(dict.get, (y, "x"))
    graph.output((z,))
    for node in graph.nodes:
        node.meta.update(path="", call=0, source="here", spec=1)
    base = build_capture(SmallUNet(), *inputs())
    capture = Capture(graph, (), base.signature, {}, "odd", True, "real", 2)
    plan = PartitionPlan({"collections": 0, "get": 0}, capture.fingerprint())
    (program,) = generate(capture, plan, link(capture, plan), model)
    assert f"import {__name__}" in program.source
    assert program.inputs == ("tests",)
    assert "def forward(self, stash, pop, tests_1):" in program.source
    assert f"collections = {__name__}.apply(tests_1, 1.0)" in program.source


def test_as_split_module_of_torch_fx() -> None:
    """The same cut by torch's own splitter: the same values cross, the same numbers come out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    capture = build_capture(model, x)
    plan = plan_at(capture, "_2", "_4")
    programs = generate(capture, plan, link(capture, plan), model)

    module = torch.fx.GraphModule(model, torch.fx.symbolic_trace(model).graph)
    theirs = split_module(module, model, lambda node: plan.stages[node.name])
    calls = [node for node in theirs.graph.nodes if node.op == "call_module"]
    assert len(calls) == len(programs)
    for call, program in zip(calls, programs, strict=True):
        part = theirs.get_submodule(str(call.target))
        names = [node.name for node in part.graph.nodes if node.op == "placeholder"]
        assert names == list(program.inputs)
        kept = [node.target for node in part.graph.nodes if node.op == "call_module"]
        assert len(kept) == len(program.modules)
    assert torch.equal(run(model, capture, plan, x)[0], theirs(x))


def test_skip_connections_as_in_split_module() -> None:
    """split_module hands every value on by the caller; portals are the same set of values."""
    model = SmallUNet().eval()
    capture = build_capture(model, *inputs())
    plan = plan_at(capture, "max_pool2d", "up1")
    graph = link(capture, plan)
    module = torch.fx.GraphModule(model, torch.fx.symbolic_trace(model).graph)
    theirs = split_module(module, model, lambda node: plan.stages[node.name])
    calls = [node for node in theirs.graph.nodes if node.op == "call_module"]
    for stage, call in enumerate(calls):
        part = theirs.get_submodule(str(call.target))
        crossing = {node.name for node in part.graph.nodes if node.op == "placeholder"}
        crossing -= {"scale", "shift"}  # ours bind what they read of the model
        ours = {e.value for e in graph.reads(stage)}
        if stage < 2:  # our last stage returns the result, theirs leaves that to the caller
            assert crossing == ours
        else:
            assert crossing <= ours
