from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fxpipe import ops
from fxpipe.capture.trace import trace
from fxpipe.ir.capture import Capture
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)


def regions(capture: Capture) -> dict[str, tuple[int, ...]]:
    return {node.name: node.meta["regions"] for node in capture.body}


def test_regions_hold_the_nodes_between_their_switches() -> None:
    found = regions(trace(small.TwoRegions(), (X,)))
    assert found["set_grad_enabled"] == found["mean"] == found["set_grad_enabled_1"] == (1,)
    assert found["enter_autocast"] == found["first_linear"] == (2,)
    assert found["enter_autocast_1"] == found["second_linear"] == found["exit_autocast"] == (2, 3)
    assert found["exit_autocast_1"] == (2,)


def of(forward: Any) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small.Mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(self, x)

    return Model()


def test_decorators_make_regions() -> None:
    model = of(torch.no_grad()(lambda self, x: self.body(x)))
    found = regions(trace(model, (X,)))
    assert found["body_linear"] == (1,)
    model = of(torch.autocast("cpu", dtype=torch.bfloat16)(lambda self, x: self.body(x)))
    capture = trace(model, (X,))
    assert capture.node("enter_autocast").args == ("cpu", torch.bfloat16, True, True)
    assert_agrees(capture, model, (X,))


def test_switches_that_change_nothing_are_left_out() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad(), torch.set_grad_enabled(True):
            return self.body(x)

    targets = [node.target for node in trace(of(forward), (X,)).body]
    assert ops.set_grad_enabled not in targets


def test_enabled_inside_disabled_is_outside_the_region() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
            with torch.enable_grad():
                z = self.body(y)
            w = z.detach() + 1
        return z * w

    model = of(forward)
    capture = trace(model, (X,))
    found = regions(capture)
    assert found["mul"] == (1,)
    assert found["body_linear"] == ()
    assert found["add"] == (2,)
    assert_agrees(capture, model, (X,))


def test_recorded_without_grad() -> None:
    model = of(lambda self, x: self.body(x))
    with torch.no_grad():
        capture = trace(model, (X,))
    assert regions(capture) == {"body_linear": (), "relu": ()}
