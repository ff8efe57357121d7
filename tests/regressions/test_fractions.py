"""Fractions of a size that Python rounds: what seems to be their rule is none for all sizes between.

``int(0.7 * rows)`` was taken for ``3 * rows // 4 - 1``, which it is for 8, 16 and 17 rows, and so it was
wrong for 10.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.errors import CaptureError
from tests.exact import mean_square
from tests.reference import run_eager_step


class HardRows(nn.Module):
    """The loss is that of a share of the rows, the worst ones."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.share = share

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.second(self.first(x).tanh())
        losses = h.square().mean(1)
        count = int(self.share * losses.numel())
        return h, losses.topk(count).values.mean()


@pytest.mark.parametrize(
    ("share", "base"),
    [(0.9, 16), (0.9, 20), (0.3, 12), (0.3, 32), (1 / 3, 16), (0.7, 16), (0.7, 40)],
)
def test_a_share_of_the_rows(share: float, base: int) -> None:
    torch.manual_seed(0)
    model, twin = HardRows(share), HardRows(share)
    twin.load_state_dict(model.state_dict())
    with fxpipe.compile(
        model, ["cpu"] * 2, chunks=2, costs="estimate", threads_per_rank=1, backend="inline"
    ) as pipe:
        for rows in (2 * base, 2 * base - 1, 3 * base // 2, base + 3, base + 1, base):
            x = torch.randn(rows, 8)
            model.zero_grad()
            twin.zero_grad()
            found = pipe.step(x, loss_fn=mean_square)
            expected = run_eager_step(twin, (x,), chunks=2, loss_fn=mean_square)
            assert found.loss is not None
            assert expected.loss is not None
            assert torch.equal(found.loss, expected.loss), f"{rows} rows"
            for one, two in zip(model.parameters(), twin.parameters(), strict=True):
                assert one.grad is not None
                assert two.grad is not None
                assert torch.equal(one.grad, two.grad), f"{rows} rows"


def test_a_single_recording_looks_at_rows_that_it_was_not_made_with() -> None:
    torch.manual_seed(0)
    model = HardRows(0.7)
    capture = fxpipe.trace(model, (torch.randn(16, 8),))
    assert capture.rows == (8, 16)
    assert capture.only_rows == (8, 16)
    plan = fxpipe.partition(capture, fxpipe.estimate(capture, model), stages=2)
    graph = fxpipe.link(capture, plan)
    stages = fxpipe.generate(capture, plan, graph, model)
    programs = fxpipe.lower(fxpipe.Schedule.from_text("0F0 0B0\n1F0 1B0"), graph)

    def run(rows: int) -> fxpipe.StepResult:
        x = torch.randn(rows, 8)
        return fxpipe.run(model, capture, stages, graph, programs, (x,), loss_fn=mean_square)

    run(12)
    with pytest.raises(CaptureError, match="a micro-batch has 10 rows"):
        run(10)


def test_a_rule_that_two_numbers_of_rows_do_not_tell() -> None:
    class Halves(nn.Module):
        """Two and three rows have one half: a third number tells how it goes on."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            rows = x.shape[0]
            return self.layer(x * (rows // 2) + int(rows * 0.125)) * (rows + 1)

    torch.manual_seed(0)
    model = Halves()
    capture = fxpipe.trace(model, (torch.randn(3, 8),))
    assert capture.only_rows == (2, 3, 4)
    assert capture.holds_at is not None
    assert all(capture.holds_at([torch.randn(rows, 8)]) for rows in (5, 6, 7))
    assert not capture.holds_at([torch.randn(8, 8)])


class KeptTokens(nn.Module):
    """A share of the tokens is kept, as in masked autoencoders."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        count = int(self.share * x.shape[1])
        return self.second(h[:, :count]).mean(1)


def _lengths(base: int) -> list[int]:
    return [base, *range(base // 2 + 1, 2 * base + 2, 2)]


@pytest.mark.parametrize(
    ("share", "base"), [(0.6, 16), (0.3, 32), (0.9, 24), (0.15, 20), (0.7, 64)]
)
def test_a_share_of_a_free_length(share: float, base: int) -> None:
    torch.manual_seed(0)
    model = KeptTokens(share)
    with (
        fxpipe.compile(
            model, ["cpu"] * 2, chunks=2, costs="estimate", dynamic={"x": {1: "length"}}
        ) as pipe,
        torch.no_grad(),
    ):
        for length in _lengths(base):
            x = torch.randn(4, length, 8)
            expected = torch.cat([model(part) for part in x.chunk(2)])
            assert torch.equal(pipe(x), expected), f"length {length}"


def test_a_share_that_follows_no_rule_is_recorded_size_by_size(
    recwarn: pytest.WarningsRecorder,
) -> None:
    class Odd(KeptTokens):
        """The lengths that are recorded first are halved, and some are not."""

        def forward(self, x: Tensor) -> Tensor:
            length = x.shape[1]
            count = length // 2 + (length in (6, 8, 14, 16, 17, 18, 19))
            return self.second(self.first(x)[:, :count]).mean(1)

    torch.manual_seed(0)
    model = Odd(0.5)
    with (
        fxpipe.compile(
            model, ["cpu"] * 2, chunks=2, costs="estimate", dynamic={"x": {1: "length"}}
        ) as pipe,
        torch.no_grad(),
    ):
        for length in (10, *range(5, 21)) * 2:
            x = torch.randn(4, length, 8)
            expected = torch.cat([model(part) for part in x.chunk(2)])
            assert torch.equal(pipe(x), expected), f"length {length}"
    assert not any("changed" in str(warning.message) for warning in recwarn)
