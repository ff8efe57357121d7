from __future__ import annotations

import pytest

from fxpipe.ir.spec import (
    Opaque,
    TensorSpec,
    ValueSpec,
    is_differentiable,
    spec_bytes,
    tensor_specs,
)


@pytest.mark.parametrize(
    ("spec", "text", "nbytes"),
    [
        (TensorSpec((8, 3), "float32"), "f32[8,3]", 96),
        (TensorSpec((5,), "bfloat16"), "bf16[5]", 10),
        (TensorSpec((2, 2), "int64"), "i64[2,2]", 32),
        (TensorSpec((), "bool"), "bool[]", 1),
        (TensorSpec((0, 7), "complex64"), "complex64[0,7]", 0),
    ],
)
def test_tensors(spec: TensorSpec, text: str, nbytes: int) -> None:
    assert (str(spec), spec.nbytes) == (text, nbytes)


def test_values_with_tensors_inside() -> None:
    one = TensorSpec((4,), "float32", requires_grad=True)
    two = TensorSpec((2,), "int64")
    value: ValueSpec = (two, {"a": one, "b": (None, 3, Opaque("Cache"))}, "text")
    assert list(tensor_specs(value)) == [two, one]
    assert spec_bytes(value) == 32
    assert is_differentiable(value)
    assert not is_differentiable((two, 1.0))
