"""Models that do something else for some numbers of rows are what eager micro-batches are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.capture.elsewhere import Elsewhere
from fxpipe.schedules.registry import SCHEDULES
from tests.losses import mean_square

Rows = Callable[[Tensor], bool]


def several(x: Tensor) -> bool:
    return x.shape[0] > 1


def few(x: Tensor) -> bool:
    return len(x) < 8


class Own(nn.Module):
    """Decides in the model's own forward."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.a, self.b, self.rows = nn.Linear(8, 8), nn.Linear(8, 8), rows

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.rows(x):
            h = h - h.mean(0) / 2
        return self.b(h)


def inside(rows: Rows) -> nn.Module:
    """Decides in a submodule."""
    return nn.Sequential(Own(rows), nn.Linear(8, 8))


MODELS = [(Own, None), (inside, ["1"]), (inside, ["0.b"])]
IDS = ["own forward", "called submodule", "divided submodule"]


def is_eager(pipe: fxpipe.Pipeline, plain: nn.Module, x: Tensor) -> None:
    """A step and a call are those of eager micro-batches."""
    parts = x.tensor_split(min(4, len(x)))
    pipe.zero_grad()
    plain.zero_grad()
    total = torch.zeros(())
    for part in parts:
        loss = mean_square(plain(part)) * (len(part) / len(x))
        loss.backward()
        total = total + loss.detach()
    made = pipe.step(x, loss_fn=mean_square)
    assert made.loss is not None
    assert torch.equal(made.loss, total)
    for ours, theirs in zip(pipe.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]
    assert torch.equal(pipe(x), torch.cat([plain(part) for part in parts]))


def piped(model: nn.Module, cuts: list[str] | None = None, **options: Any) -> fxpipe.Pipeline:
    return fxpipe.compile(
        model, ["cpu"] * 2, 4, cuts=cuts, costs="estimate", threads_per_rank=1, **options
    )


@pytest.mark.parametrize("rows", [several, few])
@pytest.mark.parametrize(("make", "cuts"), MODELS, ids=IDS)
def test_any_number_of_rows(make: Any, cuts: list[str] | None, rows: Rows) -> None:
    """Ragged batches, batches of one row, and larger ones, in any order."""
    model = make(rows)
    plain = copy.deepcopy(model)
    with piped(model, cuts) as pipe:
        for count in (6, 1, 16, 4, 64, 7, 33):
            is_eager(pipe, plain, torch.randn(count, 8))


@pytest.mark.parametrize("count", [1, 5, 64])
@pytest.mark.parametrize(("make", "cuts"), MODELS, ids=IDS)
def test_whatever_comes_first(make: Any, cuts: list[str] | None, count: int) -> None:
    model = make(several)
    plain = copy.deepcopy(model)
    with piped(model, cuts) as pipe:
        for rows in (count, 8, 1):
            is_eager(pipe, plain, torch.randn(rows, 8))


class Counts(nn.Module):
    """Computes with the number of rows, and never decides on it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).reshape(2 * x.shape[0], 4).reshape(-1, 8) / x.shape[0])


def test_a_size_is_looked_at_once_and_leads_to_no_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is the same graph at a new number of rows is run for it once, and for none in between."""
    looked: list[int] = []
    real = Elsewhere.__call__

    def holds(self: Elsewhere, leaves: list[Any]) -> bool:
        looked.append(len(leaves[0]))
        return real(self, leaves)

    monkeypatch.setattr(Elsewhere, "__call__", holds)
    model = Counts()
    plain = copy.deepcopy(model)
    with piped(model) as pipe:
        for count in (16, 6, 1, 4, 80, 40, 80, 20, 3):
            is_eager(pipe, plain, torch.randn(count, 8))
        (situation,) = pipe._recordings._situations.values()
        assert len(situation.siblings) == 1
    assert looked == [1, 20]


def test_one_way_between_two_of_another_is_not_forgotten() -> None:
    def middling(x: Tensor) -> bool:
        return 6 <= len(x) < 10

    model = Own(middling)
    plain = copy.deepcopy(model)
    with piped(model) as pipe:
        for count in (16, 32, 64, 28, 32, 16, 20):  # micro-batches of 4, 8, 16, 7, 8, 4, 5
            is_eager(pipe, plain, torch.randn(count, 8))


def test_ready_made_micro_batches() -> None:
    model = Own(several)
    plain = copy.deepcopy(model)
    calls = [((torch.randn(rows, 8),), {}) for rows in (4, 1, 9)]
    with piped(model) as pipe:
        output = pipe.step(micro_batches=calls, loss_fn=mean_square).output
    for (args, _), found in zip(calls, output, strict=True):
        assert torch.equal(found, plain(*args))


class Every(nn.Module):
    """Takes as many steps as there are rows in a micro-batch of more than four."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        for _ in range(max(0, len(x) - 4)):
            h = h.sin()
        return self.b(h)


def test_more_ways_than_allowed() -> None:
    model = Every()
    plain = copy.deepcopy(model)
    with piped(model, max_variants=3) as pipe:
        for count in (16, 20, 24):
            is_eager(pipe, plain, torch.randn(count, 8))
        with pytest.raises(fxpipe.CaptureError, match="for more than 3 numbers of rows") as caught:
            pipe(torch.randn(28, 8))
        assert "raise max_variants" in str(caught.value)
        is_eager(pipe, plain, torch.randn(20, 8))


class Refuses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("one row is too few")
        return self.b(self.a(x))


def test_what_the_model_raises_for_its_rows_is_raised() -> None:
    with piped(Refuses()) as pipe:
        pipe(torch.randn(8, 8))
        with pytest.raises(ValueError, match="one row is too few"):
            pipe(torch.randn(6, 8))
        pipe(torch.randn(8, 8))


class Squeezes(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)).squeeze()


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("count", [6, 4, 8])
def test_rows_that_lose_their_dimension_are_joined(width: int, count: int) -> None:
    """``squeeze()`` takes it from a micro-batch of one row; the batch has it."""
    model = Squeezes(width)
    plain = copy.deepcopy(model)
    x = torch.randn(count, 8)
    with piped(model) as pipe:
        output = pipe(x)
        expected = plain(x)
        assert output.shape == expected.shape
        torch.testing.assert_close(output, expected)
        output.square().mean().backward()
        expected.square().mean().backward()
        for ours, theirs in zip(pipe.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        assert pipe.step(x, loss_fn=mean_square).output.shape == expected.shape


@pytest.mark.parametrize("count", [6, 40])
def test_a_single_capture_does_not_run_what_it_was_not_recorded_for(count: int) -> None:
    def run(model: nn.Module, x: Tensor) -> fxpipe.StepResult:
        capture = fxpipe.trace(model, (torch.randn(4, 8),))
        plan = fxpipe.partition(capture, fxpipe.estimate(capture, model), 2)
        graph = fxpipe.link(capture, plan)
        stages = fxpipe.generate(capture, plan, graph, model)
        programs = fxpipe.lower(SCHEDULES["1f1b"](2, 2, 4), graph)
        return fxpipe.run(model, capture, stages, graph, programs, (x,), loss_fn=mean_square)

    x = torch.randn(count, 8)
    with pytest.raises(fxpipe.CaptureError, match="something else with them than with the 2 to 4"):
        run(Own(several if count < 8 else few), x)
    assert run(Counts(), x).output.shape == (count, 8)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LSTM(8, 8, 2, batch_first=True), nn.Linear(8, 8)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        y, state = self.a(x, state)
        return self.b(y), state


def test_a_rule_for_the_state_of_a_recurrent_layer_is_enough() -> None:
    model = Recurrent()
    x, state = torch.randn(6, 5, 8), (torch.randn(2, 6, 8), torch.randn(2, 6, 8))
    with piped(model, split={"state": fxpipe.Split(1)}) as pipe:
        output, (hidden, cell) = pipe(x, state)
    expected, (one, two) = model(x, state)
    torch.testing.assert_close((output, hidden, cell), (expected, one, two))


class Masked(Own):
    """Decides on the number of rows, and on data."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        h = self.a(x)
        if self.rows(x):
            h = h - h.mean(0) / 2
        if not mask.all():
            h = h * mask
        return self.b(h)


def test_decisions_on_rows_and_on_data() -> None:
    model = Masked(several)
    with piped(model) as pipe:
        for count in (6, 1, 40, 5):
            x, mask = torch.randn(count, 8), (torch.rand(count, 1) > 0.3).float()
            pairs = zip(
                x.tensor_split(min(4, count)), mask.tensor_split(min(4, count)), strict=True
            )
            assert torch.equal(pipe(x, mask), torch.cat([model(*pair) for pair in pairs]))
        (situation,) = pipe._recordings._situations.values()
        assert 2 <= len(situation.siblings) <= 4


def test_an_example_of_one_row() -> None:
    """It is recorded as two: one row may go another way."""
    assert fxpipe.trace(Own(several), (torch.randn(1, 8),)).rows == (2, 4)
