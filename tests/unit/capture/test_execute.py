from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx

from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.trace import trace
from tests.unit.capture import small

X = torch.randn(2, 4)


def test_outputs_are_the_leaves_of_the_output_node() -> None:
    model = small.Containers().eval()
    capture = trace(model, ({"x": X, "more": [X, None]},))
    outputs = GraphRunner.of(capture, model).run([X, X])
    assert len(outputs) == len(capture.signature.outputs)
    assert outputs[-2:] == ("n", 2)


class Counting(GraphRunner):
    alive = 0

    def run_node(self, node: torch.fx.Node) -> Any:
        self.alive = max(self.alive, len(self.values))
        return super().run_node(node)


def test_values_are_let_go_after_their_last_use() -> None:
    model = small.Chain(*(small.Mlp() for _ in range(8)))
    capture = trace(model, (X,))
    runner = Counting.of(capture, model)
    runner.run([X])
    assert runner.alive == 1


class Stops(GraphRunner):
    def run_node(self, node: torch.fx.Node) -> Any:
        if node.op == "call_module":
            raise KeyError("stop")
        return super().run_node(node)


def test_modes_are_left_when_a_node_fails() -> None:
    model = small.TwoRegions()
    capture = trace(model, (X,))
    with pytest.raises(KeyError):
        Stops.of(capture, model).run([X])
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_forward_is_called_where_the_model_called_it() -> None:
    model = small.CallsForward()
    capture = trace(model, (X,))
    calls: list[str] = []
    model.first.linear.register_forward_hook(lambda *args: calls.append("hook"))
    GraphRunner.of(capture, model).run([X])
    assert calls == ["hook"]  # once by the module's call in Mlp, not by linear.forward
