from __future__ import annotations

import torch
from torch import nn

import fxpipe
from fxpipe.changing import advice, changing_sizes


class Adds(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def captures(*lengths: int, dynamic: bool = False) -> list[fxpipe.Capture]:
    marks = {"x": {1: "n"}, "y": {0: "n"}} if dynamic else None
    return [
        fxpipe.trace(Adds(), (torch.zeros(3, n), torch.zeros(n)), dynamic=marks) for n in lengths
    ]


def test_sizes_that_change_are_found() -> None:
    assert changing_sizes(captures(4, 6)) == (("x", 1), ("y", 0))
    assert changing_sizes(captures(4, 4)) == ()
    assert changing_sizes(captures(4, 6, dynamic=True)) == ()


def test_advice_is_a_value_to_paste() -> None:
    assert "dynamic={'x': {1: 'length'}, 'y': {0: 'length'}}" in advice(captures(4, 6))
    assert "max_recordings" in advice(captures(4))
