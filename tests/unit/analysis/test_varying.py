from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fxpipe.analysis.varying import varying_outputs
from fxpipe.capture.trace import trace


class Results(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(3))

    def forward(self, x: Tensor, whole: Tensor) -> dict[str, Any]:
        y = self.linear(x)
        sums = torch.zeros(4)
        sums += y.sum(0)
        return {
            "rows": y,
            "mean": y.mean(),
            "any": (y > 0).any(),
            "written": sums,
            "size": x.size(0),
            "random": torch.rand(3),
            "table": self.table * 2,
            "weight": self.linear.weight,
            "whole": whole + 1,
            "width": x.size(1),
            "zeros": x.new_zeros(5),
            "ones": torch.ones_like(x[0]) * 2,
            "text": "text",
            "nothing": None,
        }


def test_what_follows_from_the_rows_or_from_chance() -> None:
    capture = trace(Results(), (torch.randn(4, 4), torch.randn(3)))
    names = capture.signature.output.unflatten(list(range(len(capture.signature.outputs))))
    varying = varying_outputs(capture)
    assert [name for name, at in names.items() if at in varying] == [
        "rows",
        "mean",
        "any",
        "written",
        "size",
        "random",
    ]


def test_a_free_length_is_one_for_all_micro_batches() -> None:
    class Lengths(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, int, int]:
            return x * 2, x.shape[1] - 1, x.shape[0]

    capture = trace(Lengths(), (torch.zeros(2, 6),), dynamic={"x": {1: "length"}})
    assert varying_outputs(capture) == {0, 2}
