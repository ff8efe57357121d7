from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fxpipe.capture.shadows import Shadows, Sizes, on_meta
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture.agree import assert_agrees

H = torch.randn(2, 5, 3)


def shadows() -> Shadows:
    made = Shadows(lambda tensor: False)
    made.begin(H, [1])
    return made


def test_sizes_that_a_shadow_has_too_do_not_depend_on_data() -> None:
    assert shadows().fixed(H) == {0, 2}
    assert shadows().fixed(torch.ones(2, 5, 3)) == frozenset()


@pytest.mark.parametrize(
    ("function", "args", "fixed"),
    [
        (torch.transpose, (H, 0, 1), {1, 2}),
        (torch.Tensor.flatten, (H, 0, 1), {1}),
        (torch.Tensor.sum, (H, 1), {0, 1}),
        (torch.add, (H, torch.ones(3)), {0, 2}),
        (torch.cat, ([H, H], 2), {0, 2}),
        (torch.add, (H, torch.ones(2, 5, 1)), frozenset()),  # fits the tensor and not its shadow
        (on_meta(nn.Linear(3, 7)), (H,), {0, 2}),
    ],
)
def test_what_is_computed_has_a_shadow(
    function: Callable[..., Any], args: tuple[Any, ...], fixed: set[int]
) -> None:
    made = shadows()
    linear = nn.Linear(3, 7)
    result = linear(H) if function.__name__ == "run" else function(*args)
    made.follow(function, args, {}, result)
    assert made.fixed(result) == fixed


def test_nothing_is_said_where_one_argument_is_not_known() -> None:
    other = torch.ones(2, 1, 3)
    made = Shadows(lambda tensor: tensor is other)
    made.begin(H, [1])
    result = H + other
    made.follow(torch.add, (H, other), {}, result)
    assert made.fixed(result) == frozenset()


def test_modules_have_their_parameters_back() -> None:
    linear = nn.Linear(3, 7)
    before = dict(linear.named_parameters())
    assert on_meta(linear)(torch.ones(4, 3, device="meta")).shape == (4, 7)
    assert all(before[name] is p for name, p in linear.named_parameters())


def test_sizes_are_read_where_they_may_be() -> None:
    sizes = Sizes.of(H.shape, frozenset({0, 2}), lambda: KeyError("data"))
    assert (sizes[0], sizes[-1], sizes[2:], len(sizes)) == (2, 3, (3,), 3)
    for read in (lambda: sizes[1], lambda: sizes[:2], lambda: list(sizes), sizes.numel):
        with pytest.raises(KeyError):
            read()
    with pytest.raises(KeyError):
        assert sizes == (2, 5, 3)
    with pytest.raises(KeyError):
        hash(sizes)


class Tagger(nn.Module):
    """An LSTM over padded rows, as long as the longest one."""

    def __init__(self, after: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(6, 4)
        self.after = after

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.after(self, h, lengths)


def rows(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(len(lengths), 6, 4), torch.tensor(lengths)


@pytest.mark.parametrize(
    "after",
    [
        lambda net, h, n: net.head(net.drop(h)).reshape(h.size(0), -1),
        lambda net, h, n: net.head(h).sum(1) / h.shape[0],
        lambda net, h, n: net.head(h.reshape(-1, h.shape[-1])),
        lambda net, h, n: net.head(h).view(-1, net.head(h).size(2)),
        lambda net, h, n: h.sum(1) / len(h),
        lambda net, h, n: net.head(h[torch.arange(h.size(0)), n - 1]),
        lambda net, h, n: torch.cat([part * 2 for part in h.transpose(0, 2).unbind(0)]).sum(0),
        lambda net, h, n: net.head(h[h[..., 0] > 0]).sum(0) / h[h[..., 0] > 0].shape[1],
    ],
)
def test_batch_and_features_of_unpacked_rows_may_be_read(after: Any) -> None:
    model = Tagger(after)
    capture = trace(model, rows(6, 2, 3, 5))
    assert capture.leaves == ()
    for lengths in ((1, 4, 2), (6, 6), (3, 1, 1, 2, 4)):
        assert_agrees(capture, model, rows(*lengths))


@pytest.mark.parametrize(
    "after",
    [
        lambda net, h, n: h.sum(1) / h.shape[1],
        lambda net, h, n: h * torch.ones(h.shape),
        lambda net, h, n: h.view(h.shape[0] * h.size(1), -1),
        lambda net, h, n: torch.stack([h[:, t] for t in range(h.size(1))]),
        lambda net, h, n: h.new_ones(*h.shape),
        lambda net, h, n: torch.stack(h.unbind(1)),
        lambda net, h, n: h[h > 0] / h[h > 0].numel(),
    ],
)
def test_the_longest_length_may_not(after: Any) -> None:
    with pytest.raises(CaptureError, match="a size that depends on data"):
        trace(Tagger(after), rows(6, 2, 3, 5))
