"""Real models in tiny configurations: what a pipeline computes is what eager micro-batches compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.equivalence.compare import grads_of
from tests.zoo.check import check, compiled
from tests.zoo.entry import Entry
from tests.zoo.registry import ZOO


def _cases() -> Iterator[object]:
    for entry in ZOO:
        for mode in entry.modes:
            for stages in (2, 4):
                if stages > entry.most_stages:
                    continue
                slow = entry.slow and (stages > 2 or mode != "train")
                yield pytest.param(
                    entry,
                    mode,
                    stages,
                    id=f"{entry.name}-{mode}-{stages}",
                    marks=[pytest.mark.slow] if slow else [],
                )


@pytest.mark.parametrize(("entry", "mode", "stages"), list(_cases()))
def test_a_step_is_that_of_eager_micro_batches(entry: Entry, mode: str, stages: int) -> None:
    check(entry, mode, stages)


SPLIT = ("GPT-2", "T5", "BART", "SegFormer", "MONAI UNet", "diffusers UNet2DModel", "Mamba")


@pytest.mark.slow
@pytest.mark.parametrize("entry", [e for e in ZOO if e.name in SPLIT], ids=lambda e: e.name)
def test_a_step_with_split_backwards(entry: Entry) -> None:
    check(entry, "train", 2, schedule="zb-h1")


DROPPING = [
    pytest.param(entry, id=entry.name, marks=[pytest.mark.slow] if entry.slow else [])
    for entry in ZOO
    if entry.with_dropout is not None
]


@pytest.mark.parametrize("entry", DROPPING)
def test_dropout_draws_the_same_numbers_in_one_stage_and_in_two(entry: Entry) -> None:
    assert entry.with_dropout is not None
    found = []
    args, kwargs = entry.batch(5, 2)
    for stages in (1, 2):
        torch.manual_seed(0)
        model = entry.with_dropout().train()
        with compiled(entry, model, stages, batch_norm="per_micro_batch") as pipe:
            torch.manual_seed(11)
            result = pipe.step(*args, loss_fn=lambda out, _: entry.loss(out), **kwargs)
            found.append((result.loss, grads_of(model)))
    (one, grads), (two, other_grads) = found
    assert torch.equal(one, two)
    for name, grad in grads.items():
        if grad is not None:
            torch.testing.assert_close(grad, other_grads[name])
