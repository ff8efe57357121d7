from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe import ops
from fxpipe.capture.formulas import (
    Formula,
    Size,
    fit,
    fit_float,
    fit_integer,
    identity,
)

TWO_FOUR = ((2,), (4,))
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
    assert formula((size,)) == size * numerator + offset
    assert formula.is_certain is (offset == 0)


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2), (6, 12)])
def test_halves_are_rounded_down(sizes: tuple[int, int]) -> None:
    formula = fit_integer(sizes, (sizes[0] // 2, sizes[1] // 2))
    assert formula is not None
    assert [formula((n,)) for n in (1, 2, 5, 8)] == [0, 1, 2, 4]
    assert not formula.is_certain


def test_batch_size_itself() -> None:
    assert fit(TWO_FOUR, (2, 4)) == identity()
    assert identity()((7,)) == 7


def test_no_formula() -> None:
    assert fit_integer((2, 200), (7, 8)) is None
    assert fit(TWO_FOUR, (True, False)) is None
    assert fit(TWO_FOUR, (2, 4.0)) is None
    assert fit(TWO_FOUR, ("2", "4")) is None


def test_floats() -> None:
    assert fit_float((2, 4), (32.0, 64.0)) == Formula(ops.affine_float, (Size(), 16.0, 0.0))
    assert fit_float((2, 4), (0.5, 0.25)) == Formula(ops.ratio, (1.0, Size()))
    shifted = fit_float((2, 4), (1.0, 3.0))
    assert shifted == Formula(ops.affine_float, (Size(), 1.0, -1.0))
    assert not shifted.is_certain
    assert fit_float((2, 4), (2**0.5, 2.0)) is None


POINTS = ((4, 8), (2, 8), (4, 12), (4, 9), (5, 11))
"""Rows and a length: the base, other rows, other lengths, and both."""

POINT = (3, 21)


@pytest.mark.parametrize(
    "law",
    [
        lambda b, t: t,
        lambda b, t: t - 1,
        lambda b, t: 3 * t + 2,
        lambda b, t: (t - 1) // 2,
        lambda b, t: (t + 1) // 2,
        lambda b, t: -(-t // 4),
        lambda b, t: t * t,
        lambda b, t: t * (t + 1) // 2,
        lambda b, t: t * t + 1,
        lambda b, t: b * t,
        lambda b, t: 12 * b * t,
        lambda b, t: b * t + 1,
        lambda b, t: b * (t - 1),
        lambda b, t: b * (2 * t + 1),
        lambda b, t: b * (t // 2),
        lambda b, t: b * -(-t // 2) * 5,
        lambda b, t: (b + 1) * t,
        lambda b, t: b + t,
        lambda b, t: b - t + 7,
        lambda b, t: b * t * t,
        lambda b, t: 0.5 * t,
        lambda b, t: 1 / t,
        lambda b, t: 3.0 / (b * t),
        lambda b, t: 0.25 * b * t,
    ],
)
def test_laws_of_rows_and_length_are_found_again(law: Callable[[int, int], float]) -> None:
    formula = fit(POINTS, [law(*point) for point in POINTS])
    assert formula is not None
    assert [formula(point) for point in (*POINTS, POINT)] == [law(*p) for p in (*POINTS, POINT)]


@pytest.mark.parametrize(
    "law",
    [lambda b, t: t**0.5, lambda b, t: t**3, lambda b, t: b**t],
)
def test_laws_that_are_not_followed(law: Callable[[int, int], float]) -> None:
    assert fit(POINTS, [law(*point) for point in POINTS]) is None


def test_which_sizes_a_formula_has() -> None:
    both = Formula(ops.affine, (Formula(ops.affine, (Size(2), 1, 1, 0)), Size(), 1, 0))
    assert both.axes == (0, 2)
    assert identity(1).axes == (1,)


@pytest.mark.parametrize(
    ("formula", "rounds"),
    [
        (identity(), False),
        (Formula(ops.affine, (Size(), 3, 1, -2)), False),
        (Formula(ops.affine, (Size(), 1, 2, 0)), True),
        (Formula(ops.affine, (Size(1), 1, 2, 0)), False),
        (Formula(ops.affine, (Formula(ops.affine, (Size(), 1, 2, 0)), 3, 1, 0)), True),
        (Formula(ops.affine_float, (Size(), 2.0, 1.0)), False),
        (Formula(ops.affine_float, (Size(), 0.5, 0.0)), True),
        (Formula(ops.ratio, (1.0, Size())), False),
        (Formula(ops.ratio, (2.0, Size())), True),
    ],
)
def test_fractions_may_be_rounded(formula: Formula, rounds: bool) -> None:
    assert formula.may_round(0) is rounds


def test_a_product_of_sizes_is_looked_at_once_more() -> None:
    formula = fit([(4,), (8,), (6,)], [16, 64, 36])
    assert formula is not None
    assert [formula((n,)) for n in (3, 5)] == [9, 25]
    (product,) = (arg for arg in formula.args if isinstance(arg, Formula))
    assert not product.is_certain
