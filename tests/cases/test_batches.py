"""Batches of any size and shape, one after another through the same pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.cases.blocks import WIDTH, WORDS, Block
from tests.exact import (
    RECOMPUTE,
    SCHEDULES,
    Kind,
    assert_same,
    assert_same_state,
    run_step,
    vectors,
)
from tests.reference import run_eager_step


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(x)))


class AnyLength(nn.Module):
    """Positions up to the length of the input, attention, rows and positions folded into one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.last = Block()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.size(1), device=ids.device))
        rows, length, width = x.shape
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.last(x.reshape(rows * length, width)).view(rows, length, width)


THREE = Kind(Three, vectors(WIDTH), cuts=("two", "three"))
LENGTHS = Kind(
    AnyLength,
    lambda rows: ((torch.randint(0, WORDS, (rows, 5)),), {}),
    cuts=("attention", "last"),
)


def assert_steps(
    kind: Kind, batches: Sequence[Tensor], pipe: fxpipe.Pipeline, chunks: int = 3
) -> None:
    """Steps and calls of one pipeline on all these batches are what eager's are."""
    eager = kind.model()
    for x in batches:
        pipe.module.zero_grad()
        eager.zero_grad()
        expected = run_eager_step(eager, (x,), chunks=chunks, loss_fn=kind.loss)
        found = run_step(pipe, kind, ((x,), {}))
        assert found.loss is not None
        assert expected.loss is not None
        assert_same(found.loss, expected.loss, f"loss for {tuple(x.shape)}")
        assert_same_state(found, expected)
        eager.zero_grad()
        whole = kind.loss(eager(x))
        whole.backward()
        torch.testing.assert_close(found.loss, whole.detach())
        for name, parameter in eager.named_parameters():
            torch.testing.assert_close(found.grads[name], parameter.grad)
        with torch.no_grad():
            torch.testing.assert_close(pipe(x), eager(x))


def rows(*sizes: int) -> list[Tensor]:
    return [torch.randn(size, WIDTH) for size in sizes]


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_ragged_and_tiny_batches(stages: int, schedule: str, recompute: str) -> None:
    """Eleven rows make 4, 4 and 3; two make two micro-batches, fewer than chunks; one makes one."""
    with THREE.pipe(THREE.model(), stages, schedule=schedule, recompute=recompute) as pipe:
        assert_steps(THREE, rows(11, 2, 11, 1, 3, 7), pipe)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_first_batch_of_one_row(stages: int, schedule: str) -> None:
    """What is recorded with one row holds for more."""
    model = THREE.model()
    with fxpipe.compile(
        model,
        ["cpu"] * stages,
        chunks=3,
        schedule=schedule,
        cuts=THREE.cuts[: stages - 1],
        costs="estimate",
        threads_per_rank=1,
    ) as pipe:
        assert_steps(THREE, rows(1, 8, 2), pipe)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_another_length_at_each_call(stages: int, schedule: str, recompute: str) -> None:
    batches = [torch.randint(0, WORDS, shape) for shape in ((7, 5), (6, 3), (4, 1), (7, 5), (5, 9))]
    with LENGTHS.pipe(LENGTHS.model(), stages, schedule=schedule, recompute=recompute) as pipe:
        plan = dict(pipe.plan.anchors)
        assert_steps(LENGTHS, batches, pipe)
        assert dict(pipe.plan.anchors) == plan


def test_as_many_rows_as_features() -> None:
    """A size that is that of the batch by accident is not taken for it."""
    batches = [torch.randint(0, WORDS, (size, 5)) for size in (15, 5, WIDTH, 2, 3 * WIDTH, 10)]
    with LENGTHS.pipe(LENGTHS.model(), 3) as pipe:
        assert_steps(LENGTHS, batches, pipe)


def test_evaluation_before_training() -> None:
    """With another size, and without gradients first: the placement is the same for both."""
    model, eager = THREE.model().eval(), THREE.model()
    with fxpipe.compile(
        model, ["cpu"] * 3, chunks=3, cuts=THREE.cuts, costs="estimate", threads_per_rank=1
    ) as pipe:
        with torch.no_grad():
            for x in rows(7, 1):
                torch.testing.assert_close(pipe(x), eager(x))
        pipe.train()
        assert_steps(THREE, rows(5, 9), pipe)
        with torch.inference_mode():
            (x,) = rows(4)
            torch.testing.assert_close(pipe(x), eager(x))


def test_an_empty_batch_is_told() -> None:
    with THREE.pipe(THREE.model(), 2) as pipe, pytest.raises(ValueError, match="0 rows"):
        pipe(torch.randn(0, WIDTH))
