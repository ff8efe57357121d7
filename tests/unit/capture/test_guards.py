from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.guards import failed_guard, guards_of
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)
ONES, HALF = torch.ones(2, 1), torch.tensor([[1.0], [0.0]])


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_decisions_on_inputs_are_checked_before_a_run(mode: str) -> None:
    model = small.MaskDecides()
    capture = trace(model, (X,), {"mask": HALF}, mode=mode)
    assert len(guards_of(capture)) == 1
    assert_agrees(capture, model, (X,), {"mask": HALF}, rows=4)
    assert failed_guard(capture, model, (X,), {"mask": HALF * 0}) is None
    assert failed_guard(capture, model, (X,), {"mask": ONES}) is guards_of(capture)[0]


def test_other_decision_is_refused_while_running() -> None:
    model = small.MaskDecides()
    capture = trace(model, (X,), {"mask": HALF})
    with pytest.raises(CaptureError, match="decides on a value of its data"):
        GraphRunner.of(capture, model).run([X, ONES])


def test_each_decision_has_a_capture_of_its_own() -> None:
    model = small.MaskDecides()
    one, two = (trace(model, (X,), {"mask": mask}) for mask in (ONES, HALF))
    assert one != two
    assert failed_guard(one, model, (X,), {"mask": ONES}) is None


def test_model_without_decisions_has_no_guards() -> None:
    capture = trace(small.Mlp(), (X,))
    assert guards_of(capture) == ()
    assert failed_guard(capture, small.Mlp(), (X,)) is None


class Longest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = small.Mlp()

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.body(x[:, : lengths.max().item()].repeat(1, 2))


def test_numbers_taken_from_inputs_are_checked_too() -> None:
    lengths = torch.tensor([2, 1])
    capture = trace(Longest(), (X, lengths))
    assert failed_guard(capture, Longest(), (X, torch.tensor([1, 2]))) is None
    assert failed_guard(capture, Longest(), (X, torch.tensor([3, 2]))) is not None
