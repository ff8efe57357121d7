from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn

from fxpipe.capture.fallback import Decisions
from fxpipe.capture.record import record_once
from fxpipe.capture.signature import flatten
from fxpipe.capture.trace import trace
from fxpipe.capture.verify import same, verify
from fxpipe.errors import CaptureError
from fxpipe.ir.capture import Capture
from tests.unit.capture import small

IMAGE = torch.randn(2, 4, 6, 6)


def check(capture: Capture, model: nn.Module, *args: Any) -> None:
    leaves, layout = flatten((args, {}))

    def replay() -> dict[str, Any]:
        return record_once(model, leaves, layout, Decisions(), "real", keep_values=True).values

    verify(capture, model, leaves, layout, replay)


def changed(capture: Capture, change: Any) -> Capture:
    graph = torch.fx.Graph()
    outputs = graph.graph_copy(capture.graph, {})
    graph.output(outputs)
    for old, new in zip(capture.graph.nodes, graph.nodes, strict=True):
        new.meta = dict(old.meta)
        change(new)
    return replace(capture, graph=graph, _names={})


def test_right_capture() -> None:
    model = small.ConvNet()
    check(trace(model, (IMAGE,)), model, IMAGE)


def test_first_node_that_differs_is_named() -> None:
    model = small.ConvNet()

    def change(node: torch.fx.Node) -> None:
        if node.name == "blocks_1_conv":
            node.args = (node.graph._root.next,)  # the input instead of the first block's value

    with pytest.raises(CaptureError) as caught:
        check(changed(trace(model, (IMAGE,)), change), model, IMAGE)
    text = str(caught.value)
    assert "first node that differs: blocks_1_conv, in blocks.1, at small.py:" in text
    assert "does not compute what the module computes" in text
    assert "What to do" in text


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("blocks_1_drop", "random numbers"),
        ("blocks_0_norm", "buffer"),
        ("blocks_0_act", "gradient"),
    ],
)
def test_effects_are_compared(name: str, what: str) -> None:
    model = small.ConvNet()
    with torch.no_grad():  # values do not tell: only the effects differ
        model.head.weight.zero_()
    model.blocks[1].drop.p = 1.0 - 1e-9 if what == "random numbers" else 0.5

    def change(node: torch.fx.Node) -> None:
        if node.name != name:
            return
        if what == "gradient":
            node.op, node.target = "call_method", "detach"
        else:
            node.op, node.target = "call_method", "clone"

    with pytest.raises(CaptureError, match="does not compute"):
        check(changed(trace(model, (IMAGE,)), change), model, IMAGE)


def test_module_and_grad_are_left_alone() -> None:
    model = small.ConvNet()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    image = IMAGE.clone().requires_grad_()
    check(trace(model, (image,)), model, image)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in [*model.parameters(), image])
    assert torch.equal(torch.get_rng_state(), random)


def test_model_without_a_backward() -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x).sigmoid()
            return y.mul_(2)

    model = Breaks()
    check(trace(model, (torch.ones(2, 4),)), model, torch.ones(2, 4))


def test_verification_can_be_left_out() -> None:
    class Odd(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Odd.calls += 1
            return x * Odd.calls

    with pytest.raises(CaptureError):
        trace(Odd(), (torch.ones(2, 4),))
    Odd.calls = 0

    class Fixed(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Fixed.calls += 1
            return x * min(Fixed.calls // 3, 1)

    assert trace(Fixed(), (torch.ones(2, 4),), verify=False)


def test_same() -> None:
    x = torch.tensor([1.0, float("nan")])
    assert same(x, x.clone())
    assert not same(x, x.double())
    assert not same(x, torch.tensor([2.0, float("nan")]))
    assert not same(x, 1.0)
    assert same(float("nan"), float("nan"))
    assert same(torch.eye(2).to_sparse(), torch.eye(2).to_sparse())
    assert same(small.Box(1), small.Box(2))
    assert not same("a", "b")
