"""Whole pipelines beside their eager twins, in every setting that a user may choose."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.conformance.harness import differences, state_of
from tests.reference import Eager

CHUNKS = 4


@dataclass(frozen=True)
class Setting:
    """How a pipeline runs."""

    schedule: str
    stages: int
    backend: str

    def __str__(self) -> str:
        return f"{self.schedule}-{self.stages}-{self.backend}"


SETTINGS = [
    Setting(schedule, stages, backend)
    for schedule in ("gpipe", "1f1b")
    for stages in (2, 3)
    for backend in ("inline", "local")
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)
each_recompute = pytest.mark.parametrize("recompute", ["never", "except_last", "always"])


@dataclass
class Pair:
    """A pipeline and an eager copy of its model."""

    pipe: fxpipe.Pipeline
    eager: nn.Module

    @property
    def model(self) -> nn.Module:
        return self.pipe.module

    def assert_state(self) -> None:
        """Gradients and buffers are the same, bit for bit."""
        assert differences(state_of(self.model), state_of(self.eager)) == []

    def assert_step(self, found: fxpipe.StepResult, expected: Eager) -> None:
        """Losses, gradients and buffers are the same, bit for bit."""
        assert found.loss is not None
        assert expected.loss is not None
        assert torch.equal(found.loss, expected.loss), (found.loss, expected.loss)
        self.assert_state()


@contextmanager
def pair(make: Callable[[], nn.Module], setting: Setting, **options: Any) -> Iterator[Pair]:
    """A pipeline in a setting; batch norms count per micro-batch, as in the reference's loop.

    A model of n stages is cut at the first n - 1 `cuts`, if there are some.
    """
    torch.manual_seed(0)
    model = make()
    options = {
        "chunks": CHUNKS,
        "costs": "estimate",
        "threads_per_rank": 1,
        "batch_norm": "per_micro_batch",
        "schedule": setting.schedule,
        "backend": setting.backend,
        **options,
    }
    if options.get("cuts"):
        options["cuts"] = options["cuts"][: setting.stages - 1]
    eager = copy.deepcopy(model)
    with fxpipe.compile(model, ["cpu"] * setting.stages, **options) as pipe:
        yield Pair(pipe, eager)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Floating numbers that depend on the seed only."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw_ints(high: int, *shape: int, seed: int = 0) -> Tensor:
    """Whole numbers that depend on the seed only."""
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))
