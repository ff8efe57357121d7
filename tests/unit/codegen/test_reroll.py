from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from fxpipe.codegen.generate import generate
from fxpipe.portals.edges import link
from tests.builders import build_capture, load_stages, plan_at, run_stages
from tests.unit.codegen.models import Parts, SmallUNet


def body(source: str) -> list[str]:
    """The lines of forward, without comments."""
    lines = [line.split("  #")[0].strip() for line in source.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith("def forward"))
    return [line for line in lines[start + 1 :] if line and not line.startswith("#")]


def test_results_are_taken_apart() -> None:
    model, x = Parts(), torch.randn(3)
    capture = build_capture(model, x)
    plan = plan_at(capture)
    graph = link(capture, plan)
    programs = generate(capture, plan, graph, model)
    assert body(programs[0].source) == [
        "pair_out = self.pair(x, double=True)",
        'add = pair_out["sum"]',
        'mul = pair_out["parts"][1]',
        "del pair_out",
        "self.recorder(x)",
        "both_out = self.both(add)",
        "del add",
        "tanh = both_out[0]",
        "unsqueeze = both_out[1]",
        "del both_out",
        "add_1 = tanh + mul",
        "del mul",
        "sum_2 = unsqueeze.sum(0)",
        "del tanh, unsqueeze",
        "add_2 = add_1 + sum_2",
        "return (add_2,)",
    ]
    model.recorder.seen.zero_()
    stages = load_stages(programs, model, capture)
    assert torch.equal(run_stages(stages, programs, graph, [x])[0], Parts()(x))
    assert torch.equal(model.recorder.seen, x.sum())
    assert programs[0].buffers == ("recorder.seen",)


def test_a_result_that_is_itself_read_and_whose_part_is_too() -> None:
    """A tuple-like result: the whole is one node's value, a part another's."""
    model, x = Parts(), torch.randn(3)
    capture = build_capture(model, x)
    spans = [
        replace(span, outputs={"tanh": (), "unsqueeze": (0, ".T")}) if span.path == "both" else span
        for span in capture.spans
    ]
    odd = replace(capture, spans=tuple(spans))
    plan = plan_at(odd)
    source = generate(odd, plan, link(odd, plan), model)[0].source
    lines = body(source)
    assert "tanh = self.both(add)" in lines
    assert "unsqueeze = tanh[0].T" in lines


def test_forward_called_by_name() -> None:
    model = SmallUNet()
    capture = build_capture(model, torch.randn(2, 1, 8, 8), torch.ones(1))
    spans = tuple(replace(s, via="forward") if s.path == "mid" else s for s in capture.spans)
    odd = replace(capture, spans=spans)
    plan = plan_at(odd)
    source = generate(odd, plan, link(odd, plan), model)[0].source
    assert "mid_drop = self.mid.forward(max_pool2d_1)" in source
    assert "enc2_drop = self.enc2(max_pool2d)" in source


def test_hooks_fire_once_per_call_as_in_eager() -> None:
    torch.manual_seed(1)
    model = SmallUNet().eval()
    inputs = (torch.randn(2, 1, 8, 8), torch.ones(1))
    capture = build_capture(model, *inputs)
    plan = plan_at(capture, "mid_norm", "up1")
    graph = link(capture, plan)
    programs = generate(capture, plan, graph, model)
    stages = load_stages(programs, model, capture)
    fired: list[str] = []
    for path, module in model.named_modules():
        if path:
            module.register_forward_hook(lambda m, a, out, path=path: fired.append(path))
            module.register_forward_pre_hook(lambda m, a, path=path: fired.append("before " + path))
    model(*inputs)
    eager, fired[:] = list(fired), []
    run_stages(stages, programs, graph, inputs)
    assert [line for line in eager if line.split()[-1] != "mid"] == fired  # cut: it is not called


def test_a_hook_may_change_the_result() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
    x = torch.randn(3, 2)
    capture = build_capture(model, x)
    plan = plan_at(capture, "_1")
    graph = link(capture, plan)
    programs = generate(capture, plan, graph, model)
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    got = run_stages(load_stages(programs, model, capture), programs, graph, [x])
    assert torch.equal(got[0], model(x))
