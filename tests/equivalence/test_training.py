"""Ten steps of training with dropout: the same losses, bit for bit, however the model is run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxpipe
from fxpipe.schedules.registry import SCHEDULES

WIDTH, ROWS, CHUNKS, STEPS = 8, 16, 4, 10
BACKENDS = ("inline", "local")
RECOMPUTE = ("never", "except_last", "always")
TWO_COPIES = ("dualpipe", "chimera")
"""Their stages are on two ranks, whose gradients are added at the end: up to rounding."""
Run = tuple[int, int, str]
"""Ranks, stages per rank, schedule."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), Noise()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.norm(self.inner(x)).tanh())


class Noise(nn.Module):
    """A dropout layer, a dropout function and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.drop(x), 0.1, self.training)
        return x + 0.01 * torch.randn_like(x)


class Network(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(WIDTH, WIDTH)
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.blocks(self.first(x))))


def train(ranks: int, per_rank: int, schedule: str, tied: bool = False, **options: Any) -> Any:
    """The losses of ten steps, and the caller's next random number."""
    torch.manual_seed(0)
    model = Network(tied)
    options = {"costs": "estimate", "threads_per_rank": 1, "schedule": schedule, **options}
    losses = []
    with fxpipe.compile(
        model, ["cpu"] * ranks, CHUNKS, stages_per_rank=per_rank, **options
    ) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
        for step in range(STEPS):
            x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
            losses.append(pipe.step(x, target=x.flip(1), loss_fn=F.mse_loss).loss)
            optimizer.step()
            optimizer.zero_grad()
    buffers = [buffer.clone() for buffer in model.buffers()]
    return torch.stack(losses), torch.rand(()), buffers


def runs() -> Iterator[Run]:
    """Every schedule that there is for a number of stages up to four."""
    for name, make in SCHEDULES.items():
        for ranks, per_rank in ((1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (1, 4)):
            if name in ("forward", *TWO_COPIES):
                continue
            try:
                make(ranks * per_rank, ranks, CHUNKS)
            except fxpipe.ScheduleError:
                continue
            yield ranks, per_rank, name


RUNS = list(runs())
FEW = [
    run
    for name in dict.fromkeys(name for _, _, name in RUNS)
    for run in dict.fromkeys([r for r in RUNS if r[2] == name][at] for at in (1, -1))
]
"""Two of each schedule."""


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert torch.equal(one, other), (one, other)
    for one, other in zip(found[2], expected[2], strict=True):
        assert torch.equal(one, other)


NORMS = ("deferred", "per_micro_batch")


@cache
def alone(norms: str) -> Any:
    """Training in one stage, with a kind of batch norm."""
    return train(1, 1, "gpipe", batch_norm=norms, backend="inline")


def test_every_schedule_is_among_them() -> None:
    assert {name for _, _, name in RUNS} == SCHEDULES.keys() - {"forward", *TWO_COPIES}
    stages = {ranks * per_rank for ranks, per_rank, _ in RUNS}
    assert stages == {1, 2, 3, 4}


@pytest.mark.parametrize("norms", NORMS)
def test_it_trains(norms: str) -> None:
    losses = alone(norms)[0]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("at", range(len(FEW)), ids=lambda at: "-".join(map(str, FEW[at])))
def test_losses_are_the_same_numbers(at: int) -> None:
    """Each run with one kind of batch norm, recompute mode and backend, in turn."""
    ranks, per_rank, schedule = FEW[at]
    norms, recompute, backend = NORMS[at // 2 % 2], RECOMPUTE[at % 3], BACKENDS[at % 2]
    options = {"recompute": recompute, "backend": backend, "batch_norm": norms}
    assert_same(train(ranks, per_rank, schedule, **options), alone(norms))


MODES = list(itertools.product(BACKENDS, RECOMPUTE, NORMS))
EVERY = "FXPIPE_EVERY_MODE" in os.environ
"""Set: every run in every mode (half an hour); else each run in three of the twelve, in turn."""


def modes_of(at: int) -> list[tuple[str, str, str]]:
    """A mode with each way to recompute, for a run; all twelve occur among four runs on end."""
    if EVERY:
        return MODES
    return [
        (BACKENDS[(at + turn) % 2], recompute, NORMS[(at // 2 + turn) % 2])
        for turn, recompute in enumerate(RECOMPUTE)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "backend", "recompute", "norms"),
    [(run, *mode) for at, run in enumerate(RUNS) for mode in modes_of(at)],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_losses_are_the_same_numbers_in_every_mode(
    run: Run, backend: str, recompute: str, norms: str
) -> None:
    options = {"recompute": recompute, "backend": backend, "batch_norm": norms}
    assert_same(train(*run, **options), alone(norms))


@pytest.mark.parametrize(
    ("backend", "recompute"), [("inline", "never"), ("local", "except_last"), ("local", "always")]
)
def test_tied_parameters_and_two_copies_agree_up_to_rounding(backend: str, recompute: str) -> None:
    expected = train(1, 1, "gpipe", tied=True, backend="inline")
    options = {"backend": backend, "recompute": recompute}
    found = train(2, 1, "1f1b", tied=True, **options)
    torch.testing.assert_close(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    again = train(2, 1, "1f1b", tied=True, **options)
    assert_same(again, found)
    untied = train(1, 1, "gpipe", backend="inline")
    for schedule in TWO_COPIES:
        torch.testing.assert_close(train(2, 1, schedule, **options)[0], untied[0])


def test_the_seed_decides() -> None:
    """That of `torch.manual_seed`: one number is drawn per step. An integer: none is drawn."""

    def losses(seed: int | None, manual: int, steps: int = 3) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        model = Network()
        torch.manual_seed(manual)
        x = torch.ones(ROWS, WIDTH).cumsum(0)
        with fxpipe.compile(
            model, ["cpu"] * 2, CHUNKS, costs="estimate", threads_per_rank=1, seed=seed
        ) as pipe:
            found = [pipe.step(x, target=x, loss_fn=F.mse_loss).loss for _ in range(steps)]
        return torch.stack(found), torch.get_rng_state()

    def drawn(manual: int, times: int) -> Tensor:
        torch.manual_seed(manual)
        for _ in range(times):
            torch.randint(0, 2**63 - 1, (), dtype=torch.int64)
        return torch.get_rng_state()

    first, state = losses(None, 1)
    assert torch.equal(losses(None, 1)[0], first)
    assert all(itertools.starmap(torch.ne, zip(losses(None, 2)[0], first, strict=True)))
    assert torch.equal(state, drawn(1, 3))
    fixed, untouched = losses(5, 1)
    assert torch.equal(losses(5, 2)[0], fixed)
    assert torch.equal(untouched, drawn(1, 0))
    assert len(set(fixed.tolist())) == 3, "every step has numbers of its own"
