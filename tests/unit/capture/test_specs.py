from __future__ import annotations

import numpy as np
import torch

from fxpipe.capture.specs import Storages, spec_of
from fxpipe.ir.spec import Opaque, TensorSpec
from tests.unit.capture.small import Box, Pair, Result

X = torch.zeros(2, 3, dtype=torch.float16)
SPEC = TensorSpec((2, 3), "float16")


def test_specs_of_nested_values() -> None:
    value = {"a": [X, 1], "b": (X.requires_grad_(), None), "c": Pair(X.detach(), "t")}
    assert spec_of(value) == {
        "a": (TensorSpec((2, 3), "float16", True), 1),
        "b": (TensorSpec((2, 3), "float16", True), None),
        "c": (SPEC, "t"),
    }


def test_specs_of_objects() -> None:
    assert spec_of(Box(X.detach())) == {"value": SPEC}
    assert spec_of(Box(3)) == Opaque("Box")
    assert spec_of(Result(X.detach())) == {"value": SPEC, "pair": None, "count": 3}
    assert spec_of(torch.nn.ReLU()) == Opaque("ReLU")
    assert spec_of(np.float64(2.5)) == 2.5


def test_storages_are_numbered_in_order_of_appearance() -> None:
    storages = Storages()
    x, y = torch.zeros(4), torch.zeros(4)
    assert storages.of(x) == (0,)
    assert storages.of([y, x[1:], y.view(2, 2)]) == (1, 0)
    assert storages.known({key for key in storages._ids}) == (0, 1)
    assert storages.known({-1}) == ()


def test_storages_are_not_numbered_twice_when_memory_is_used_again() -> None:
    storages = Storages()
    assert [storages.of(torch.zeros(1000)) for _ in range(20)] == [(n,) for n in range(20)]
