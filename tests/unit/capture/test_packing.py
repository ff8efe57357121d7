from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn
from torch.nn.utils.rnn import pack_padded_sequence as pack
from torch.nn.utils.rnn import pad_packed_sequence as pad

from fxpipe.capture import packing
from fxpipe.capture.patches import patched
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture.agree import assert_agrees
from tests.unit.capture.small import Chain

X = torch.randn(4, 6, 8)
LENGTHS = torch.tensor([6, 6, 3, 2])
OTHER = torch.tensor([1, 4, 2, 3])


class Tagger(nn.Module):
    """Calls the packing functions by names of its own."""

    def __init__(self, **padding: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.first = nn.LSTM(8, 8, batch_first=True)
        self.second = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)
        self.padding = padding

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed = pack(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        h, _ = self.first(packed)
        h, last = self.second(h)
        states = last.transpose(0, 1).reshape(last.shape[1], -1)
        padded, found = pad(h, batch_first=True, **self.padding)
        return self.head(padded), found, states


@pytest.mark.parametrize("padding", [{}, {"total_length": 6}, {"padding_value": 1.0}])
def test_packing_follows_the_lengths(padding: dict[str, Any]) -> None:
    model = Tagger(**padding)
    capture = trace(model, (X, LENGTHS))
    targets = [node.target for node in capture.body]
    assert rnn.pack_padded_sequence in targets
    assert rnn.pad_packed_sequence in targets
    for lengths in (LENGTHS, OTHER):
        assert_agrees(capture, model, (X, lengths))
    assert_agrees(capture, model, (X[:3], OTHER[:3]))


def test_nothing_stays_whole() -> None:
    capture = trace(Tagger(), (X, LENGTHS))
    assert capture.leaves == ()


class PaddedLength(nn.Module):
    def __init__(self, total_length: int | None) -> None:
        super().__init__()
        self.total_length = total_length

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = pad(packed, batch_first=True, total_length=self.total_length)
        return padded.sum(1) / padded.shape[1]


def test_the_length_of_the_longest_sequence_depends_on_data() -> None:
    with pytest.raises(CaptureError, match="a size that depends on data"):
        trace(PaddedLength(None), (X, LENGTHS))
    capture = trace(Chain3(nn.Linear(8, 8), PaddedLength(None)), (X, LENGTHS))
    assert [leaf.path for leaf in capture.leaves] == ["second"]


def test_a_total_length_depends_on_none() -> None:
    model = PaddedLength(6)
    assert_agrees(trace(model, (X, LENGTHS)), model, (X, OTHER))


class Chain3(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x), lengths)


def test_fake_runs_keep_the_module_whole() -> None:
    model = Chain(nn.Linear(8, 8))
    whole = Chain3(model, PaddedLength(6))
    capture = trace(whole, (X, LENGTHS), mode="fake")
    assert [leaf.path for leaf in capture.leaves] == ["second"]
    assert_agrees(capture, whole, (X, OTHER))


def test_the_functions_are_left_as_they_were() -> None:
    codes = pack.__code__, pad.__code__
    trace(Tagger(), (X, LENGTHS))
    assert (pack.__code__, pad.__code__) == codes


def test_other_threads_do_not_notice() -> None:
    from fxpipe.capture.fallback import Decisions
    from fxpipe.capture.recorder import Recorder

    recorder = Recorder(nn.Identity(), Decisions())
    found: list[torch.Tensor] = []
    with patched(recorder):
        thread = threading.Thread(
            target=lambda: found.extend(pad(pack(X, LENGTHS, True, False), True))
        )
        thread.start()
        thread.join()
    assert found[0].shape == X.shape
    assert found[1].tolist() == LENGTHS.tolist()


def test_signatures_are_those_of_torch() -> None:
    undo = packing.install()
    try:
        with pytest.raises(TypeError, match="lengths"):
            pack(X)  # type: ignore[call-arg]
        assert pad(sequence=pack(X, LENGTHS, True, enforce_sorted=False))[0].shape == (6, 4, 8)
    finally:
        undo()
