from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fxpipe.capture.trace import trace
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)


class Scales(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        rows = x.shape[0]
        return (
            x.view(rows, 2, -1).sum() / float(rows),
            x * (1 / rows),
            x.expand(rows, *x.shape),
            rows,
        )


def test_they_stand_after_the_inputs_and_are_shared() -> None:
    capture = trace(Scales(), (X,))
    names = [node.name for node in capture.body]
    assert names[0] == "batch_size"
    assert names.count("batch_size") == 1
    assert capture.node("view").args[1] is capture.node("batch_size")
    assert capture.node("batch_size").meta["draws"] == 0
    assert_agrees(capture, Scales(), (X,), rows=5)


class Flattens(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] * x.shape[1], -1)


def test_a_product_of_sizes_stands_after_the_sizes() -> None:
    capture = trace(Flattens(), (torch.randn(2, 6, 4),), dynamic={"x": {1: "length"}})
    product = capture.node("reshape").args[1]
    assert isinstance(product, torch.fx.Node)
    assert product.meta["spec"] == 12
    names = [node.name for node in capture.body]
    assert {"batch_size", "length"} < set(names[: names.index(product.name)])
    capture.graph.lint()
    assert_agrees(capture, Flattens(), (torch.randn(3, 5, 4),))
