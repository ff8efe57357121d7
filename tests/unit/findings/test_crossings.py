from __future__ import annotations

import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.findings.crossings import may_cross, that_cross
from fxpipe.ir.findings import CrossingFinding
from tests.builders import plan_at


class Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[0] * 2
        y = self.second(self.first(x))
        return y.reshape(size, 4)


def test_the_stages_of_a_plan() -> None:
    capture = fxpipe.trace(Numbers(), (torch.randn(4, 8),))
    found = list(that_cross(capture, plan_at(capture, "first", "second")))
    assert [(each.producer, each.consumers) for each in found] == [(0, (2,))]
    assert found[0].text == "8"


def test_what_some_plan_could_hand_on() -> None:
    capture = fxpipe.trace(Numbers(), (torch.randn(4, 8),))
    found = list(may_cross(capture))
    assert found[-1] == CrossingFinding(
        value="rows", text="8", path="", source="x.size(0) * 2", producer=None, consumers=()
    )


def test_tensors_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    capture = fxpipe.trace(model, (torch.randn(4, 8),))
    assert list(may_cross(capture)) == []
    assert list(that_cross(capture, plan_at(capture, capture.body[1].name))) == []
