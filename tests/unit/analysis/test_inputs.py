from typing import Any

import pytest
import torch

from fxpipe.analysis.inputs import placeholder_values, rows
from fxpipe.errors import CaptureError
from fxpipe.ir.capture import Capture
from fxpipe.ir.signature import CallSignature, InputLeaf, OutputLeaf
from fxpipe.ir.spec import TensorSpec
from tests.captures import Structure

X, Y = torch.zeros(3, 2), torch.ones(5, 3)
SPEC = TensorSpec((3, 2), "float32")


def capture(example: Any, leaves: tuple[InputLeaf, ...]) -> Capture:
    signature = CallSignature(Structure(example), leaves, Structure(0), (OutputLeaf(0),))
    return Capture(torch.fx.Graph(), (), signature, {}, "Model", True, "real", 3)


NESTED = capture(
    (({"x": 0, "n": 0},), {"y": [0]}),
    (
        InputLeaf("x", "x", SPEC, 0),
        InputLeaf("n", None, None, None, 7),
        InputLeaf("y", "y", SPEC, 1),
    ),
)


def test_tensors_are_found_wherever_they_stand() -> None:
    values = placeholder_values(NESTED, ({"x": X, "n": 7},), {"y": [Y]})
    assert values[0] is X
    assert values[1] is Y
    assert rows(NESTED, values) == 3


def test_the_batch_size_is_read_along_the_batch_dimension() -> None:
    only = capture(((0,), {}), (InputLeaf("y", "y", SPEC, 1),))
    assert rows(only, [Y]) == 3
    fixed = capture(((0,), {}), (InputLeaf("y", "y", SPEC, None),))
    assert rows(fixed, [Y]) == 3


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(CaptureError, match=r"no 1\.y"):
        placeholder_values(NESTED, ({"x": X, "n": 7},), {})


def test_a_constant_in_place_of_a_tensor_is_refused() -> None:
    with pytest.raises(CaptureError, match="x was a tensor when recorded, now it is None"):
        placeholder_values(NESTED, ({"x": None, "n": 7},), {"y": [Y]})
