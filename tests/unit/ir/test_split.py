from __future__ import annotations

import pytest

from fxpipe.ir.split import Replicate, Split


def test_they_compare_and_print() -> None:
    assert Split() == Split(0) != Split(1)
    assert Replicate() == Replicate()
    assert str(Split(1)) == "Split(dim=1)"


@pytest.mark.parametrize("dim", [None, "0", 1.0, True])
def test_a_dimension_is_an_int(dim: object) -> None:
    with pytest.raises(TypeError, match="takes a dimension"):
        Split(dim)  # type: ignore[arg-type]
