from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 8, 4)
LENGTH = {"x": {1: "length"}}


class Attention(nn.Module):
    """Positions, a causal mask and heads, all written with sizes."""

    def __init__(self, width: int = 4, longest: int = 32) -> None:
        super().__init__()
        self.pos = nn.Parameter(torch.randn(longest, width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        h = x + self.pos[: x.shape[1]]
        q, k, v = self.qkv(h).view(rows, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        allowed = torch.tril(torch.ones(length, length)).bool()
        scores = (q @ k.transpose(-1, -2)).masked_fill(~allowed, -1e9).softmax(-1)
        h = (scores @ v).transpose(1, 2).reshape(rows, length, width)
        weights = torch.arange(length) / length
        return self.out(h * weights[:, None]).reshape(rows * length, width)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_one_recording_serves_every_length(mode: str) -> None:
    model = Attention()
    capture = trace(model, (X,), dynamic=LENGTH, mode=mode)
    assert capture.leaves == ()
    assert capture.signature.inputs[0].dynamic == ((1, "length"),)
    for rows, length in ((1, 2), (3, 5), (2, 8), (5, 31)):
        assert_agrees(capture, model, (torch.randn(rows, length, 4),))


class UNet(nn.Module):
    """Two levels; what is brought up again is cut to the size of the skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.low = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.mix = nn.Conv2d(9, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down(x).relu()
        b = self.low(a).relu()
        rows, channels, height, width = b.shape
        tokens = b.flatten(2).transpose(1, 2).softmax(1)
        b = tokens.transpose(1, 2).reshape(rows, channels, height, width)
        b = F.interpolate(b, size=a.shape[2:], mode="bilinear")
        h = F.interpolate(torch.cat([a, b], 1), scale_factor=2)[..., : x.shape[2], : x.shape[3]]
        return self.mix(torch.cat([h, x], 1)) / (x.shape[2] * x.shape[3])


def test_two_sides_of_an_image_are_free() -> None:
    model = UNet()
    sides = {"x": {2: "height", 3: "width"}}
    capture = trace(model, (torch.randn(2, 1, 16, 12),), dynamic=sides)
    assert capture.leaves == ()
    for height, width in ((7, 9), (16, 16), (5, 22)):
        assert_agrees(capture, model, (torch.randn(3, 1, height, width),))


class Unpadded(nn.Module):
    """Takes sizes of whole blocks only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        h = self.first(x).view(rows * (length // 4), 4, width)
        return self.second(h.softmax(1)).view(rows, length, width)


@pytest.mark.parametrize("label", ["length", "4*length"])
def test_a_model_that_takes_multiples_only(label: str) -> None:
    model = Unpadded()
    capture = trace(model, (X,), dynamic={"x": {1: label}})
    assert capture.signature.inputs[0].dynamic == ((1, label),)
    assert_agrees(capture, model, (torch.randn(3, 20, 4),))


def test_a_longest_size_is_kept_to() -> None:
    model = Attention(longest=8)
    capture = trace(model, (X,), dynamic=LENGTH)
    assert_agrees(capture, model, (torch.randn(3, 3, 4),))


class Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x


def test_sizes_that_change_together_have_one_name() -> None:
    x = torch.randn(2, 6, 6)
    capture = trace(Square(), (x,), dynamic={"x": {1: "side", 2: "side"}})
    assert_agrees(capture, Square(), (torch.randn(2, 9, 9),))
    with pytest.raises(CaptureError, match="'height' is marked dynamic, but the model takes no"):
        trace(Square(), (x,), dynamic={"x": {1: "height", 2: "width"}})


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 0, 0, 1)) if x.shape[1] % 2 else x


def test_a_branch_on_a_length_keeps_a_module_whole() -> None:
    model = small.Chain(small.Mlp(), Branches())
    capture = trace(model, (X,), dynamic=LENGTH)
    assert [leaf.path for leaf in capture.leaves] == ["parts.1"]
    assert "with length 9 instead of 8, it takes other steps" in capture.leaves[0].reason
    assert_agrees(capture, model, (torch.randn(2, 5, 4),))
    with pytest.raises(CaptureError, match="with length 9 instead of 8"):
        trace(Branches(), (X,), dynamic=LENGTH)


class Roots(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[1] ** -0.5


def test_a_number_that_follows_no_known_formula_keeps_a_module_whole() -> None:
    model = small.Chain(small.Mlp(), Roots())
    capture = trace(model, (X,), dynamic=LENGTH)
    assert [leaf.path for leaf in capture.leaves] == ["parts.1"]
    assert_agrees(capture, model, (torch.randn(2, 5, 4),))


class Counts(nn.Module):
    """Decides on its mask and hands the number of its steps on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        h = self.first(x)
        if not mask.all():
            h = h * mask[..., None]
        return self.second(h), x.shape[1]


def test_decisions_on_a_padded_mask_come_out_alike_at_other_lengths() -> None:
    mask = torch.ones(2, 8)
    mask[1, 6:] = 0
    dynamic = {"x": {1: "length"}, "mask": {1: "length"}}
    model = Counts()
    capture = trace(model, (X, mask), dynamic=dynamic)
    assert_agrees(capture, model, (torch.randn(2, 11, 4), torch.eye(2, 11)))


def test_an_input_that_is_marked_has_no_rows_there() -> None:
    x, table = torch.randn(4, 3), torch.randn(4, 3)

    class Adds(nn.Module):
        def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return x @ table.t()

    capture = trace(Adds(), (x, table), dynamic={"table": {0: "entries"}})
    assert [leaf.batch_dim for leaf in capture.signature.inputs] == [0, None]
    assert_agrees(capture, Adds(), (x, torch.randn(9, 3)), rows=2)


def test_a_size_of_one_is_recorded_as_it_is() -> None:
    model = Attention()
    capture = trace(model, (X[:, :1],), dynamic=LENGTH)
    assert capture.signature.inputs[0].dynamic == ()
    assert_agrees(capture, model, (X[:, :1],), rows=3)


def test_no_batch_and_a_dynamic_dimension() -> None:
    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(x.shape[0] // 2, 2).sum(1)

    capture = trace(Sums(), (torch.randn(8),), dynamic={"x": {0: "items"}})
    assert capture.signature.inputs[0].batch_dim is None
    model = Sums()
    from fxpipe.capture.execute import GraphRunner

    x = torch.randn(14)
    assert torch.equal(GraphRunner.of(capture, model).run([x])[0], model(x))


def test_a_result_with_as_many_items_as_rows_is_refused() -> None:
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"rows": list(self.layer(x))}

    with pytest.raises(CaptureError, match=r"2 items for 2 rows and 4 for 4(.|\n)*torch.stack"):
        trace(Lists(), (torch.randn(2, 4),))
