from __future__ import annotations

import torch
from torch import nn

from fxpipe.capture.sources import Sources
from fxpipe.capture.trace import trace
from tests.unit.capture import small


def test_line_of_the_caller() -> None:
    text = Sources().here()
    assert text.startswith("test_sources.py:")
    assert text.endswith("in test_line_of_the_caller: text = Sources().here()")


def test_lines_inside_torch_are_passed_over() -> None:
    found: list[str] = []

    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.append(Sources().here())
            return x

    nn.Sequential(Looks())(torch.zeros(1))
    assert "in forward: found.append" in found[0]


def test_nodes_name_the_line_of_the_users_forward() -> None:
    capture = trace(small.ConvNet(), (torch.randn(2, 4, 6, 6),))
    source = capture.node("cat").meta["source"]
    assert source.startswith("small.py:")
    assert source.endswith("in forward: h = torch.cat([h, x], 1)[:, :4]")


def test_what_calls_the_model_is_no_line_of_it() -> None:
    capture = trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(2, 4),))
    assert [node.meta["source"] for node in capture.body] == ["", ""]
