"""Which lists are all that a node returned."""

from __future__ import annotations

import torch
from torch import nn

import fxpipe
from fxpipe.capture.parts import ALL_READ
from fxpipe.ir.capture import Capture


class Lists(nn.Module):
    """Rows, some of them, and all in another order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = x.chunk(2, dim=1)
        swapped = torch.cat((two, one), dim=1)
        return swapped + torch.cat(x.chunk(2, dim=1), dim=1) + torch.stack(list(x)[:1])


def takes(capture: Capture) -> list[str]:
    return [str(node.target) for node in capture.body if node.meta.get(ALL_READ)]


def test_only_all_parts_in_order_are_the_whole() -> None:
    capture = fxpipe.trace(Lists(), (torch.randn(4, 6),), batch_dims=[None])
    assert takes(capture) == ["chunk"]
    rows = capture.node("unbind")
    assert len(rows.users) == 4


class Passes(nn.Module):
    """Hands its rows to a module as a list."""

    class Joins(nn.Module):
        def forward(self, rows: list[torch.Tensor]) -> torch.Tensor:
            return torch.stack(rows)

    def __init__(self) -> None:
        super().__init__()
        self.joins = self.Joins()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.joins(list(x)) * 2


def test_parts_that_a_module_is_handed_stay() -> None:
    capture = fxpipe.trace(Passes(), (torch.randn(4, 6),), batch_dims=[None])
    assert takes(capture) == ["unbind"]
    unbound = [node for node in capture.body if node.name.startswith("getitem")]
    assert len(unbound) == 4
