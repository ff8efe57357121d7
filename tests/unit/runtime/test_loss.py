from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fxpipe.runtime.loss import LossTask, loss_weights


def task(loss_fn: Any = None) -> LossTask:
    return LossTask(loss_fn, [None], [1.0])


def test_a_loss_function_gets_output_and_target() -> None:
    found = task(lambda output, target: output["y"].sum() - target).loss({"y": torch.ones(3)}, 1)
    assert found.item() == 2.0


@pytest.mark.parametrize(
    "output",
    [
        torch.tensor(2.0),
        torch.tensor([2.0]),
        {"loss": torch.tensor(2.0), "logits": torch.ones(3)},
        OrderedDict(loss=torch.tensor(2.0)),
        SimpleNamespace(loss=torch.tensor(2.0)),
    ],
)
def test_an_output_that_is_or_has_a_loss(output: Any) -> None:
    assert task().loss(output, None).item() == 2.0


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (torch.ones(2), r"shape \(2,\) and torch.float32"),
        (torch.tensor(1), r"torch.int64"),
        ({"logits": torch.ones(1)}, "NoneType"),
        (3.0, "NoneType"),
        (None, "NoneType"),
    ],
)
def test_an_output_without_a_loss(output: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task().loss(output, None)


def test_a_function_that_returns_no_scalar() -> None:
    with pytest.raises(ValueError, match="loss_fn returned str"):
        task(lambda output, target: "loss").loss(torch.ones(1), None)


# ---- weights -----------------------------------------------------------------------------------------

ROWS = (3, 3, 2)
CALLS = [((torch.ones(n),), {"k": n}) for n in ROWS]


def weigh(weights: Any, targets: Sequence[Any] = (0, 3, 1)) -> tuple[float, ...]:
    return loss_weights(weights, ROWS, lambda: CALLS, targets)


def test_shares_of_the_rows() -> None:
    assert weigh("samples") == (3 / 8, 3 / 8, 2 / 8)


def test_sums_weigh_one_each() -> None:
    assert weigh("sum") == (1.0, 1.0, 1.0)


def test_a_function_counts_and_its_shares_are_taken() -> None:
    assert weigh(lambda args, kwargs, target: target) == (0.0, 3 / 4, 1 / 4)
    assert weigh(lambda args, kwargs, target: args[0].sum() * kwargs["k"]) == (
        9 / 22,
        9 / 22,
        4 / 22,
    )


@pytest.mark.parametrize("told", [[0.5, 0, 2], (0.5, 0.0, 2.0), torch.tensor([0.5, 0.0, 2.0])])
def test_numbers_are_taken_as_they_are(told: Any) -> None:
    assert weigh(told) == (0.5, 0.0, 2.0)
    task = LossTask(None, [None] * 3, weigh(told))
    assert [task.counts(m) for m in range(3)] == [True, False, True]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("mean", "weights must be 'samples', 'sum', a function"),
        (3.0, "weights must be .* got 3.0"),
        ([1.0, 1.0], "2 weights are given for 3 micro-batches"),
        ([0.0, 0.0, 0.0], "nothing to learn from"),
        ([1.0, float("nan"), 1.0], "weights has nan: a weight is a finite number"),
        (lambda args, kwargs, target: 0, "nothing to learn from"),
        (lambda args, kwargs, target: -target, "returned a negative number"),
        (lambda args, kwargs, target: args[0], r"returned a tensor of shape \(3,\)"),
        (lambda args, kwargs, target: None, "returned NoneType: a weight is one number"),
    ],
)
def test_weights_that_make_no_sense(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weigh(weights)
