from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe import ops
from fxpipe.capture.formulas import IDENTITY, SIZE, Formula, fit, fit_float, fit_integer

SIZES = st.sampled_from([(2, 4), (3, 6), (4, 2), (8, 4)])


@given(
    numerator=st.integers(-9, 9).filter(bool),
    offset=st.integers(-20, 20),
    sizes=SIZES,
    size=st.integers(1, 100),
)
def test_integers_are_found_again(
    numerator: int, offset: int, sizes: tuple[int, int], size: int
) -> None:
    values = (sizes[0] * numerator + offset, sizes[1] * numerator + offset)
    formula = fit_integer(sizes, values)
    assert formula is not None
    assert formula(size) == size * numerator + offset
    assert formula.is_certain is (offset == 0)


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (6, 12)])
def test_halves_are_rounded_down(sizes: tuple[int, int]) -> None:
    formula = fit_integer(sizes, (sizes[0] // 2, sizes[1] // 2))
    assert formula is not None
    assert [formula(n) for n in (1, 2, 5, 8)] == [0, 1, 2, 4]
    assert not formula.is_certain


def test_batch_size_itself() -> None:
    assert fit((2, 4), (2, 4)) == IDENTITY
    assert IDENTITY(7) == 7


def test_no_formula() -> None:
    assert fit_integer((2, 200), (7, 8)) is None
    assert fit((2, 4), (True, False)) is None
    assert fit((2, 4), (2, 4.0)) is None
    assert fit((2, 4), ("2", "4")) is None


def test_floats() -> None:
    assert fit_float((2, 4), (32.0, 64.0)) == Formula(ops.affine_float, (SIZE, 16.0, 0.0))
    assert fit_float((2, 4), (0.5, 0.25)) == Formula(ops.ratio, (1.0, SIZE))
    shifted = fit_float((2, 4), (1.0, 3.0))
    assert shifted == Formula(ops.affine_float, (SIZE, 1.0, -1.0))
    assert not shifted.is_certain
    assert fit_float((2, 4), (2**0.5, 2.0)) is None
