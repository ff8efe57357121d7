from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fxpipe.capture.attempts import Attempts, OtherRowsError
from fxpipe.capture.axes import free_axes, marked
from fxpipe.capture.batch import given_batch
from fxpipe.capture.call import Call
from fxpipe.capture.fallback import Decisions
from fxpipe.capture.signature import flatten
from fxpipe.errors import CaptureError


def attempts(model: nn.Module, x: torch.Tensor, **dims: str) -> Attempts:
    leaves, layout = flatten(((x,), {}))
    dynamic = {"x": {int(dim[1:]): name for dim, name in dims.items()}}
    marks = marked(model, leaves, layout, dynamic)
    batch = given_batch(leaves, [0])
    call = Call(model, leaves, layout, batch, free_axes(marks, leaves, batch))
    return Attempts(call, Decisions(), "real")


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_every_size_changes_alone_and_all_together() -> None:
    tried = attempts(Doubles(), torch.randn(2, 6), d1="length")
    tried.make()
    assert tried.base == (2, 6)
    assert tried.rows is not None
    points = [made.point for made in tried.others]
    assert tried.rows.point[1] == 6
    assert any(rows == 2 and length != 6 for rows, length in points)
    assert all(far != base for far, base in zip(tried.far.point, tried.base, strict=True))
    assert len(tried.all) == len(points) + 1


def test_only_what_is_forgotten_is_recorded_again() -> None:
    tried = attempts(Doubles(), torch.randn(2, 6))
    tried.make()
    first = tried.first
    tried.make()
    assert tried.first is first
    tried.forget_first()
    tried.try_rows(4)
    tried.make()
    assert tried.first is not first
    assert tried.rows is not None
    assert tried.rows.point == (4,)


def test_twice_the_rows_where_half_are_refused() -> None:
    tried = attempts(Refuses(lambda rows, width: rows % 4 == 0), torch.randn(4, 6))
    tried.make()
    assert tried.rows is not None
    assert tried.rows.point == (8,)
    point, _ = tried.at_first_rows(9, 12)
    assert point == (12,)
    with pytest.raises(OtherRowsError, match="was run on 9 rows"):
        tried.at_first_rows(9, 10)


class Refuses(nn.Module):
    """Takes some sizes only."""

    def __init__(self, takes: Callable[..., bool]) -> None:
        super().__init__()
        self.takes = takes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.takes(*x.shape):
            raise ValueError("not this size")
        return x * 2


@pytest.mark.parametrize(
    ("takes", "error", "match"),
    [
        (lambda rows, height, width: rows == 2, OtherRowsError, "for every batch size"),
        (
            lambda rows, height, width: height == 6,
            CaptureError,
            "'height' is marked dynamic, but the model takes no other",
        ),
        (lambda rows, height, width: 6 in (height, width), CaptureError, "cannot change together"),
    ],
)
def test_a_model_that_takes_no_other_sizes_says_so(
    takes: Callable[..., bool], error: type[Exception], match: str
) -> None:
    tried = attempts(Refuses(takes), torch.randn(2, 6, 6), d1="height", d2="width")
    with pytest.raises(error, match=match):
        tried.make()
