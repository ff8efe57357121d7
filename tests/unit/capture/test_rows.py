from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.capture.batch import Batch
from fxpipe.capture.rows import choose_batch
from fxpipe.capture.signature import flatten
from tests.unit.capture import small


def batch_of(model: nn.Module, *args: torch.Tensor) -> Batch | None:
    return choose_batch(model, *flatten((args, {})))


def sequences(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


@pytest.mark.parametrize(("source", "target"), [(5, 4), (5, 5)])
def test_transformer_takes_its_batch_second(source: int, target: int) -> None:
    model = nn.Transformer(8, 2, 1, 1, 8)
    assert batch_of(model, sequences(source, 2, 8), sequences(target, 2, 8)) == Batch(2, (1, 1))


def test_transformer_with_batch_first() -> None:
    model = nn.Transformer(8, 2, 1, 1, 8, batch_first=True)
    assert batch_of(model, sequences(2, 5, 8), sequences(2, 4, 8)) == Batch(2, (0, 0))


def test_model_that_turns_its_batch_itself() -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x.transpose(0, 1))[0].transpose(0, 1)

    assert batch_of(Turns(), sequences(3, 5, 4)) == Batch(3, (0,))


def test_recurrent_model_over_tokens() -> None:
    tokens = torch.arange(12).reshape(4, 3)
    assert batch_of(small.Recurrent(batch_first=False), tokens) == Batch(3, (1,))
    assert batch_of(small.Recurrent(batch_first=True), tokens) == Batch(4, (0,))


def test_without_data_the_model_itself_tells() -> None:
    model = nn.Transformer(8, 2, 1, 1, 8, device="meta")
    meta = sequences(5, 2, 8).to("meta")
    assert batch_of(model, meta, meta.clone()) == Batch(2, (1, 1))


def test_model_is_left_as_it_was() -> None:
    model = small.Recurrent(batch_first=False)
    before = torch.get_rng_state()
    batch_of(model, torch.arange(12).reshape(4, 3))
    assert model.training
    assert model.rnn.training
    assert torch.equal(torch.get_rng_state(), before)
