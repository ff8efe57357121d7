from __future__ import annotations

import pytest
import torch

from fxpipe.capture.situation import batch_dimension, situation_of
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
