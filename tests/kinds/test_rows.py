"""Rows taken apart in Python: handed on all together, or one by one in a module that stays whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.errors import CaptureError
from tests.cases.blocks import WIDTH, Block
from tests.exact import CHUNKS, Kind, vectors
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


class JoinsPairs(_Two):
    """Two views of every sample, one after the other: an odd number of rows is an error."""

    def between(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0] // 2, 2, -1).mean(1)


class ShiftsFrames(_Two):
    """Clips of four frames, whose channels move on in time."""

    def between(self, x: Tensor) -> Tensor:
        clips = x.view(x.shape[0] // 4, 4, x.shape[1])
        moved = torch.zeros_like(clips)
        moved[:, 1:, :4] = clips[:, :-1, :4]
        moved[:, :, 4:] = clips[:, :, 4:]
        return moved.view(x.shape)


KINDS = {
    cls.__name__: Kind(cls, vectors(WIDTH))
    for cls in (JoinsRows, ReadsARowToo, JoinsAList, LoopsInside)
}
GROUPS = {
    cls.__name__: Kind(cls, lambda rows: ((torch.randn(CHUNKS * 4 * (rows - 5), WIDTH),), {}))
    for cls in (JoinsPairs, ShiftsFrames)
}


@each({**KINDS, **GROUPS})
def test_whole_and_in_two(kind: Kind) -> None:
    assert_works(kind)


@pytest.mark.parametrize(
    ("cls", "leaves"),
    [(JoinsRows, []), (ReadsARowToo, []), (JoinsAList, []), (LoopsInside, ["each"])],
)
def test_what_stays_whole(cls: type[nn.Module], leaves: list[str]) -> None:
    capture = fxpipe.trace(cls(), (torch.randn(4, WIDTH),))
    assert [leaf.path for leaf in capture.leaves] == leaves


def test_one_group_of_rows_for_each_micro_batch() -> None:
    torch.manual_seed(0)
    model, clips = ShiftsFrames(), torch.randn(3, 4, WIDTH)
    with fxpipe.compile(model, ["cpu"] * 2, chunks=3) as pipe:
        output = pipe(clips.view(12, WIDTH))
    assert torch.equal(output, torch.cat([model(clip) for clip in clips]))
    assert fxpipe.trace(model, (clips[0],)).rows == (4, 8)


def test_a_graph_that_is_given_twice_has_no_rows() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
            return self.layer(nodes).index_add(0, edges[0], nodes[edges[1]])

    edges = torch.tensor([[0, 1, 5], [4, 5, 2]])
    assert fxpipe.trace(Graph(), (torch.randn(6, WIDTH), edges)).rows is None


def test_groups_of_rows_that_are_cut_are_told() -> None:
    with (
        fxpipe.compile(ShiftsFrames(), ["cpu"] * 2, chunks=3) as pipe,
        pytest.raises(RuntimeError, match="invalid for input of size") as found,
    ):
        pipe(torch.randn(16, WIDTH))
    assert "every micro-batch must have whole groups" in found.value.__notes__[0]


def test_a_loop_over_the_rows_in_the_model_itself_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"rows instead of 4(.|\n)*submodule of its own"):
        fxpipe.trace(EachRow(), (torch.randn(4, WIDTH),))
