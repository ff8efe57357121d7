from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fxpipe.capture.probe import probe
from fxpipe.fake_model import FakeModel
from tests.unit.capture import small

ERROR = ValueError("no data")


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor, ids: torch.Tensor, name: str) -> Any:
        self.seen = [x.item() if x.numel() == 1 else x.shape, ids.tolist(), name]
        return small.Pair(self.linear(x), {"n": 3})


def test_result_has_the_structure_of_a_run() -> None:
    model = Looks()
    with FakeModel(model) as fakes:
        x, ids = fakes.fake(torch.zeros(2, 4)), fakes.fake(torch.zeros(2, dtype=torch.long))
        result = probe(fakes, model, model.forward, ((x, ids, "n"), {}), ERROR)
        assert isinstance(model.linear.weight, FakeTensor)
    assert type(result) is small.Pair
    assert isinstance(result.first, FakeTensor)
    assert (result.first.shape, result.first.requires_grad) == ((2, 3), True)
    assert result.second == {"n": 3}
    assert model.seen == [torch.Size([2, 4]), [1, 1], "n"]


def test_without_data_the_first_error_stands() -> None:
    model = Looks().to("meta")
    with FakeModel(model) as fakes, pytest.raises(ValueError, match="no data"):
        probe(fakes, model, model.forward, ((), {}), ERROR)


def test_results_may_be_written_into() -> None:
    model = Looks()
    with FakeModel(model) as fakes:
        x, ids = fakes.fake(torch.zeros(2, 4)), fakes.fake(torch.zeros(2, dtype=torch.long))
        result = probe(fakes, model, model.forward, ((x, ids, "n"), {}), ERROR)
        assert result.first.add_(1).requires_grad
