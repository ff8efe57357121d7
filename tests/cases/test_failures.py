"""One stage fails in one micro-batch."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, Block
from tests.exact import RECOMPUTE, SCHEDULES, Kind, assert_same, vectors
from tests.reference import run_eager_step


class Limited(nn.Module):
    """Refuses large values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x.detach().abs() > 1e3).any()):
            raise ValueError("a value is out of range")
        return self.layer(x)


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.is_large = bool((x.abs() > 1e3).any())  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        if ctx.is_large:  # type: ignore[attr-defined]
            raise ValueError("a value is out of range")
        return grad


class FailsLater(Limited):
    """Refuses them in backward only."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(FailsBackward.apply(x))


KINDS = {
    name: Kind(
        lambda layer=layer: nn.Sequential(nn.Linear(WIDTH, WIDTH), layer(), Block()),
        vectors(WIDTH),
        cuts=("1", "2"),
    )
    for name, layer in (("forward", Limited), ("backward", FailsLater))
}


def bad_batch() -> Tensor:
    x = torch.randn(8, WIDTH)
    x[5] = 1e6
    return x


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_the_error_is_told_and_the_next_batch_runs(
    name: str, stages: int, schedule: str, recompute: str
) -> None:
    """The user's exception, with stage, micro-batch and module; no thread is lost to it."""
    kind = KINDS[name]
    model, eager = kind.model(), kind.model()
    with kind.pipe(model, stages, schedule=schedule, recompute=recompute, chunks=4) as pipe:
        args, _ = kind.data(8)
        pipe.step(*args, loss_fn=kind.loss)
        threads = threading.active_count()
        for _ in range(2):
            with pytest.raises(ValueError, match="a value is out of range") as caught:
                pipe.step(bad_batch(), loss_fn=kind.loss)
            notes = "\n".join(caught.value.__notes__)
            assert "stage 1" in notes
            assert "micro-batch 2" in notes
            if name == "forward":
                assert "at 1, test_failures.py:" in notes, "the module and its line"
        assert threading.active_count() == threads
        model.zero_grad()
        found = pipe.step(*args, loss_fn=kind.loss)
    expected = run_eager_step(eager, args, chunks=4, loss_fn=kind.loss)
    assert_same(found.loss, expected.loss, "loss")
    for (parameter, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert_same(p.grad, q.grad, parameter)


def test_an_error_in_a_call_without_gradients() -> None:
    kind = KINDS["forward"]
    with kind.pipe(kind.model(), 3, chunks=4) as pipe, torch.no_grad():
        with pytest.raises(ValueError, match="out of range"):
            pipe(bad_batch())
        pipe(torch.randn(8, WIDTH))
