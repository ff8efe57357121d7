from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)


class Counts(nn.Module):
    """A leaf that needs data: its result's size is a number it finds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y if y.sum().item() > 0 else y * 2


def test_leaf_that_needs_data_is_run_on_synthetic_data() -> None:
    model = small.Chain(small.Mlp(), Counts(), nn.Dropout(0.5))
    capture = trace(model, (X,), mode="fake")
    assert [leaf.path for leaf in capture.leaves] == ["parts.1"]
    assert capture.node("parts_1").meta["draws"] == 0
    assert_agrees(capture, model, (X,), rows=3)


class Packs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=3)[0]


class UsesPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Packs(), nn.Linear(4, 600)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x, lengths))


@pytest.mark.parametrize(("mode", "leaves"), [("real", []), ("fake", ["encoder"])])
def test_packed_sequences(mode: str, leaves: list[str]) -> None:
    model, args = UsesPacked(), (torch.randn(2, 3, 4), torch.tensor([3, 2]))
    capture = trace(model, args, mode=mode)
    assert [leaf.path for leaf in capture.leaves] == leaves
    assert_agrees(capture, model, args, rows=3)


def test_leaf_without_any_data() -> None:
    with torch.device("meta"):
        model = small.Chain(small.Mlp(), Counts())
    with pytest.raises((CaptureError, RuntimeError)):
        trace(model, (X.to("meta"),))


def test_decision_on_an_input_is_taken_on_its_data() -> None:
    model = small.MaskDecides()
    for mask, steps in ((torch.ones(2, 1), 0), (torch.zeros(2, 1), 1)):
        capture = trace(model, (X,), {"mask": mask}, mode="fake")
        assert [node.target for node in capture.body].count("mul") == steps


def test_buffers_decide_with_their_data() -> None:
    class Warms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small.Mlp()
            self.register_buffer("steps", torch.tensor(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x) * 2 if self.steps > 2 else x

    for mode in ("real", "fake"):
        capture = trace(Warms(), (X,), mode=mode)
        assert "mul" in [node.name for node in capture.body]
