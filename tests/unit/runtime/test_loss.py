from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fxpipe.runtime.loss import LossTask


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
