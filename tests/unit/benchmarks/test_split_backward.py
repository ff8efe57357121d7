"""The benchmark of split backwards: which FLOPs it counts, which ratios it reports."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.harness import Sample
from benchmarks.split_backward import (
    SPLIT,
    WHOLE,
    Case,
    Passes,
    flops_in_weight_pass,
    pipeline,
    ratio_with_spread,
)


class Half(nn.Module):
    """Two equal products, one of which nobody can split."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(4, 4, bias=False), nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensordot(self.layer(x), self.weight, 1)


def test_share_of_flops_in_the_weight_pass() -> None:
    whole = Case("layer", nn.Linear(4, 4), torch.randn(8, 4))
    half = Case("half", Half(), torch.randn(8, 4))
    with pipeline(whole, SPLIT) as one, pipeline(half, SPLIT) as other:
        assert flops_in_weight_pass(whole, one) == (1.0, 1.0)
        assert flops_in_weight_pass(half, other) == (0.5, 1.0)


def test_passes_are_spans_of_the_schedule() -> None:
    case = Case("layer", nn.Linear(4, 4), torch.randn(8, 4))
    for schedule, kinds in ((WHOLE, "FB"), (SPLIT, "FIW")):
        with pipeline(case, schedule) as pipe:
            x = case.x.clone().requires_grad_()
            timeline = pipe.step(x, loss_fn=lambda y, _: y.sum()).timeline
            assert "".join(str(span.action)[1] for span in timeline.compute_spans(0)) == kinds


def test_passes_add_up_in_the_last_rounds() -> None:
    passes = Passes()
    passes.note(9.0, 9.0, 9.0)
    passes.note(1.0, 2.0, 3.0)
    passes.note(1.0, 4.0)
    assert passes.backward(2).seconds == (5.0, 4.0)
    assert passes.step(2).seconds == (6.0, 5.0)


def test_ratio_within_rounds_with_spread() -> None:
    over, under = Sample((2.0, 4.0, 9.0)), Sample((2.0, 2.0, 3.0))
    assert ratio_with_spread(over, under) == "2.000 ±1.000"
