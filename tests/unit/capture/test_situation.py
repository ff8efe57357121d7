from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest
import torch
from torch import nn

from fxpipe.capture.batch import batch_dimension
from fxpipe.capture.situation import situation_of
from fxpipe.capture.trace import trace
from tests.unit.capture import small

X = torch.randn(2, 4, 6, 6)


def test_batch_size_does_not_matter() -> None:
    model = small.ConvNet()
    assert situation_of(model, (X,)) == situation_of(model, (torch.randn(7, 4, 6, 6),))
    assert trace(model, (X,)).situation == situation_of(model, (X,))
    assert hash(situation_of(model, (X,)))


def test_everything_else_does() -> None:
    model = small.ConvNet()
    start = situation_of(model, (X,))
    others = [
        situation_of(model, (torch.randn(2, 4, 8, 6),)),
        situation_of(model, (X.double(),)),
        situation_of(model, (X.clone().requires_grad_(),)),
        situation_of(model, (X,), {"scale": 1.0}),
        situation_of(model, (X,), {"scale": 1}),
        situation_of(model, (), {"x": X}),
    ]
    with torch.no_grad():
        others.append(situation_of(model, (X,)))
    with torch.autocast("cpu"):
        others.append(situation_of(model, (X,)))
    model.blocks[0].drop.eval()
    others.append(situation_of(model, (X,)))
    model.blocks[0].drop.train()
    model.head.weight.requires_grad_(False)
    others.append(situation_of(model, (X,)))
    assert start not in others
    assert len(set(others)) == len(others)


@pytest.mark.parametrize(("batch_first", "dim"), [(True, 0), (False, 1)])
def test_dimension_is_that_of_an_earlier_capture(batch_first: bool, dim: int) -> None:
    model = small.Recurrent(batch_first)
    tokens = torch.arange(12).reshape(4, 3)
    capture = trace(model, (tokens,))
    assert batch_dimension(capture) == dim
    other = tokens.repeat_interleave(2, dim)
    assert situation_of(model, (other,), like=capture) == capture.situation
    longer = tokens.repeat_interleave(2, 1 - dim)
    assert situation_of(model, (longer,), like=capture) != capture.situation


def test_unhashable_constants_are_told_apart_by_identity() -> None:
    model, one, two = small.ConvNet(), {1}, {1}
    assert situation_of(model, (X, one)) == situation_of(model, (X, one))
    assert situation_of(model, (X, one)) != situation_of(model, (X, two))


def test_arrays_are_told_apart_by_value() -> None:
    model = small.ConvNet()

    def of(array: np.ndarray) -> Hashable:
        return situation_of(model, (X, array))

    assert of(np.arange(4)) == of(np.arange(4))
    changed = np.arange(4)
    before = of(changed)
    changed[0] = 7
    others = [
        before,
        of(changed),
        of(np.arange(4).reshape(2, 2)),
        of(np.arange(4, dtype=np.int32)),
    ]
    assert len(set(others)) == len(others)


def test_numbers_are_told_apart_by_what_they_compute() -> None:
    model = small.ConvNet()
    assert situation_of(model, (X, 0.0)) != situation_of(model, (X, -0.0))
    assert situation_of(model, (X, float("nan"))) == situation_of(model, (X, -float("-nan")))


def test_dtypes_of_parameters_and_buffers_count() -> None:
    model, tokens = nn.Sequential(nn.Embedding(4, 4), nn.BatchNorm1d(4)), torch.tensor([1, 2])
    found = [situation_of(model, (tokens,))]
    found.append(situation_of(model.double(), (tokens,)))
    model[1].running_mean = model[1].running_mean.half()
    found.append(situation_of(model, (tokens,)))
    assert len(set(found)) == 3


def test_autocast_counts_wherever_tensors_are() -> None:
    on_meta = X.to("meta")
    model = small.ConvNet()
    start = situation_of(model, (X,)), situation_of(model, (on_meta,))
    with torch.autocast("cpu", torch.float16):
        half = situation_of(model, (X,)), situation_of(model, (on_meta,))
    with torch.autocast("cpu", torch.bfloat16):
        brain = situation_of(model, (X,)), situation_of(model, (on_meta,))
    assert len({*start, *half, *brain}) == 6


def test_inputs_given_whole_stay_whole() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * w.sum(0)

    model, w = Whole(), torch.randn(8, 4)
    capture = trace(model, (torch.randn(16, 4), w))
    eight = (torch.randn(8, 4), w)
    assert situation_of(model, eight, like=capture) == capture.situation
    assert situation_of(model, eight) != capture.situation
