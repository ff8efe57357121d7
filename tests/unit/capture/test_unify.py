from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxpipe import ops
from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(2, 4)


class Inner(nn.Module):
    def forward(self, x: torch.Tensor, rows: int) -> torch.Tensor:
        return x.reshape(rows * 2, -1)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, rows=x.shape[0])


def test_arguments_of_module_calls_follow_the_batch_size_too() -> None:
    capture = trace(Outer(), (X,))
    span = capture.spans[1]
    assert span.fixed is None
    assert span.kwargs["rows"] is capture.node("batch_size")
    assert capture.node("reshape").args[1] is capture.node("rows")
    assert capture.node("rows").target is ops.affine


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] > 2 else x.cos()


def test_branch_on_the_batch_size_keeps_a_module_whole() -> None:
    model = small.Chain(small.Mlp(), Branches())
    capture = trace(model, (X,))
    assert [(leaf.path, leaf.reason) for leaf in capture.leaves] == [
        ("parts.1", "with 4 rows instead of 2, it takes other steps")
    ]
    assert_agrees(capture, model, (X,), rows=4)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda x: x.sin() if len(x) > 2 else x.cos(), "other steps"),
        (lambda x: torch.cat([x] * len(x)), "items become"),
        (lambda x: x * (len(x) ** 0.5), "becomes 2.0"),
        (lambda x: x.sum(dim=0, keepdim=len(x) > 2), "False becomes True"),
        (lambda x: x + torch.from_numpy(x.numpy().mean(0) * len(x)), "tensors"),
        (lambda x: x.sum() + torch.zeros(len(x) ** 2).sum(), None),
        (lambda x: x + torch.zeros((len(x) + 1) // 2).sum(), None),
        (lambda x: x + torch.zeros(len(x) // 2 + 1).sum(), None),
        (lambda x: x + torch.as_tensor(len(x)), None),
    ],
)
def test_what_cannot_follow_the_batch_size(forward: Any, reason: str | None) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

    if reason is None:
        assert_agrees(trace(Model(), (X,)), Model(), (X,), rows=5)
        return
    with pytest.raises(CaptureError, match=reason):
        trace(Model(), (X,), mode="real")


class Trims(nn.Module):
    """Shortens its input to the longest row: kept whole, as it decides on values."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x[:, : int(lengths.max())]


class Longest(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> int:
        return int(lengths.max())


class UsesLength(nn.Module):
    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.linear, self.trims, self.reads = nn.Linear(4, 4), Trims(), reads

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        h = self.trims(self.linear(x), lengths)
        return h.sum(1) / (h.shape[1] if self.reads else 1)


class UsesLongest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.longest = nn.Linear(4, 4), Longest()

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.linear(x) / self.longest(x, lengths)


LONG = torch.randn(4, 6, 4)


@pytest.mark.parametrize("lengths", [[6, 6, 3, 2], [2, 3, 6, 6]])
@pytest.mark.parametrize("make", [lambda: UsesLength(True), UsesLongest])
def test_numbers_out_of_a_module_kept_whole_may_depend_on_data(
    make: Any, lengths: list[int]
) -> None:
    args = (LONG, torch.tensor(lengths))
    with pytest.raises(CaptureError, match="with other data in its rows"):
        trace(make(), args)
    model = Nested(make())
    capture = trace(model, args)
    assert "inner" in [leaf.path for leaf in capture.leaves]
    assert_agrees(capture, model, (LONG, torch.tensor([4, 1, 1, 1])))


def test_a_size_that_nobody_reads_may_depend_on_data() -> None:
    model = UsesLength(False)
    capture = trace(model, (LONG, torch.tensor([6, 6, 3, 2])))
    assert [leaf.path for leaf in capture.leaves] == ["trims"]
    assert_agrees(capture, model, (LONG, torch.tensor([4, 1, 1, 1])))


class Nested(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x, lengths))


class ManyRows(nn.Module):
    """Does otherwise for more than three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y * 2 if x.shape[0] > 3 else y


class MaskedRows(nn.Module):
    """Decides on its data, fewer rows may decide otherwise; calls what looks at their number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = ManyRows(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.head(self.inner(x))
        return y if mask.all() else y * mask


@pytest.mark.parametrize("rows", [4, 5])
def test_a_decision_on_the_number_of_rows_is_no_matter_of_chance(rows: int) -> None:
    with pytest.raises(CaptureError, match="it takes other steps"):
        trace(ManyRows(), (torch.randn(rows, 4),))
    model = nn.Sequential(ManyRows(), nn.Linear(4, 4))
    capture = trace(model, (torch.randn(rows, 4),))
    assert [leaf.path for leaf in capture.leaves] == ["0"]
    assert_agrees(capture, model, (torch.randn(rows, 4),), rows=2)


def test_beside_a_decision_on_data() -> None:
    model, mask = MaskedRows(), torch.tensor([[1.0], [1.0], [1.0], [0.0]])
    capture = trace(model, (torch.randn(4, 4), mask))
    assert [leaf.path for leaf in capture.leaves] == ["inner"]
    other = torch.tensor([[1.0], [0.0]])
    assert_agrees(capture, model, (torch.randn(2, 4), other))


class MakesGenerator(nn.Module):
    """The same noise in every run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.Generator().manual_seed(0)
        return self.layer(x) + torch.randn(4, generator=made)


@pytest.mark.parametrize("dims", [[0], [None]])
def test_a_module_that_makes_a_generator_stays_whole(dims: list[int | None]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), MakesGenerator(), nn.Linear(4, 4))
    x = torch.randn(4, 4)
    capture = trace(model, (x,), batch_dims=dims)
    assert [leaf.path for leaf in capture.leaves] == ["1"]
    for _ in range(2):
        assert torch.equal(GraphRunner.of(capture, model).run([x])[0], model(x))


def test_a_generator_made_by_the_model_itself_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"makes a random generator(.|\n)*randn") as e:
        trace(MakesGenerator(), (torch.randn(4, 4),))
    assert "outside of forward" in str(e.value)


def test_a_generator_that_stays_is_drawn_from() -> None:
    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = torch.Generator().manual_seed(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn(4, generator=self.held)

    assert not trace(Draws(), (torch.randn(4, 4),)).leaves
