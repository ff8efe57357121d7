from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import fxpipe
from fxpipe.capture.refusals import refuse

X = torch.randn(4, 4)


def lazy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(4), nn.LazyBatchNorm1d())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
def test_a_scripted_model_is_told() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with pytest.raises(fxpipe.CaptureError, match=r"\(Sequential\) is compiled by torch.jit"):
        fxpipe.trace(model, (X,))


def test_lazy_layers_are_told_until_they_have_run() -> None:
    model = lazy()
    with pytest.raises(
        fxpipe.CaptureError, match=r"'1.weight', '1.bias', '2.weight', … has no shape"
    ):
        fxpipe.trace(model, (X,))
    with (
        fxpipe.compile(model, ["cpu"] * 2, threads_per_rank=1, costs="estimate") as pipe,
        pytest.raises(fxpipe.CaptureError, match="call the model once"),
    ):
        pipe(X)
    model(X)
    fxpipe.trace(model, (X,))


def test_parts_may_be_scripted() -> None:
    refuse(nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 4)))


class Yields(nn.Module):
    """A model that computes while its result is read."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(2):
            x = self.layer(x)
            yield x


def test_generators_as_results() -> None:
    with pytest.raises(fxpipe.CaptureError, match=r"result is a generator(.|\n)*return a list"):
        fxpipe.trace(Yields(), (torch.ones(3, 4),))


@pytest.mark.parametrize("dims", [[0], [None], None])
def test_inputs_with_data_for_weights_without(dims: list[int | None] | None) -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.Linear(4, 4, device="meta"))
    with pytest.raises(fxpipe.CaptureError, match=r"meta device(.|\n)*load the weights") as found:
        fxpipe.trace(model, (torch.ones(3, 4),), batch_dims=dims)
    assert not getattr(found.value, "__notes__", [])


class Logs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 4), 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.seen = y.mean().item()
        return y


def test_numbers_that_are_only_looked_at() -> None:
    with pytest.raises(fxpipe.CaptureError, match="take the number out after the call"):
        fxpipe.trace(Logs(), (torch.ones(3, 4),))


class Queue(nn.Module):
    """A queue of rows with a pointer, which is taken out as a number, or is not."""

    def __init__(self, as_number: bool) -> None:
        super().__init__()
        self.layer, self.as_number = nn.Linear(4, 4), as_number
        self.register_buffer("queue", torch.zeros(7, 4))
        self.register_buffer("pointer", torch.full((1,), 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, rows = self.layer(x), len(x)
        start = int(self.pointer) if self.as_number else self.pointer
        self.queue[(start + torch.arange(rows)) % 7] = h.detach()
        if self.as_number:
            self.pointer[0] = (start + rows) % 7
        else:
            self.pointer.copy_((start + rows) % 7)
        return h @ self.queue.clone().T


def test_numbers_that_follow_rows_and_data() -> None:
    example = (torch.ones(3, 4),)
    with pytest.raises(fxpipe.CaptureError, match=r"x\[…\] = …(.|\n)*as a tensor"):
        fxpipe.trace(Queue(True), example)
    assert not fxpipe.trace(Queue(False), example).leaves
