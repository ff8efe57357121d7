"""Rows taken apart in Python: handed on all together, or one by one in a module that stays whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.errors import CaptureError
from tests.cases.blocks import WIDTH, Block
from tests.exact import Kind, vectors
from tests.kinds.check import assert_works, each


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def between(self, x: Tensor) -> Tensor:
        raise AssertionError

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.between(self.one(x)))


class JoinsRows(_Two):
    """A list of the rows, put together again; and pieces of two rows."""

    def between(self, x: Tensor) -> Tensor:
        rows = list(x)
        joined = torch.cat(rows, dim=0).view(x.shape[0], -1)
        pieces = x.split(2)
        return joined * torch.stack(rows) + torch.cat(pieces)


class ReadsARowToo(_Two):
    """All rows together, and the first one alone."""

    def between(self, x: Tensor) -> Tensor:
        rows = x.unbind()
        return torch.stack(rows) + rows[0]


class ListsRows(nn.Module):
    """Returns a list of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.layer(x))


class JoinsAList(_Two):
    """Rows out of a module, put together outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = ListsRows()

    def between(self, x: Tensor) -> Tensor:
        return torch.stack(self.lists(x))


class EachRow(nn.Module):
    """A layer for one row after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(row) for row in x])


class LoopsInside(_Two):
    """A module loops over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.each = EachRow()

    def between(self, x: Tensor) -> Tensor:
        return self.each(x)


KINDS = {
    cls.__name__: Kind(cls, vectors(WIDTH))
    for cls in (JoinsRows, ReadsARowToo, JoinsAList, LoopsInside)
}


@each(KINDS)
def test_whole_and_in_two(kind: Kind) -> None:
    assert_works(kind)


@pytest.mark.parametrize(
    ("cls", "leaves"),
    [(JoinsRows, []), (ReadsARowToo, []), (JoinsAList, []), (LoopsInside, ["each"])],
)
def test_what_stays_whole(cls: type[nn.Module], leaves: list[str]) -> None:
    capture = fxpipe.trace(cls(), (torch.randn(4, WIDTH),))
    assert [leaf.path for leaf in capture.leaves] == leaves


def test_a_loop_over_the_rows_in_the_model_itself_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"rows instead of 4(.|\n)*submodule of its own"):
        fxpipe.trace(EachRow(), (torch.randn(4, WIDTH),))
