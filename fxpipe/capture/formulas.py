"""How a number follows the batch size, found from its values at two sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from fxpipe import ops

SIZE: Final = "size"
"""Stands for the batch size among the arguments of a `Formula`."""

_DENOMINATORS: Final = (1, 2, 3, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Formula:
    """A function of ``ops`` with the batch size among its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self, size: int) -> Any:
        """The number for a batch size."""
        return self.function(*(size if arg is SIZE else arg for arg in self.args))

    @property
    def is_certain(self) -> bool:
        """Whether two values are enough to believe it: a whole multiple, or a quotient."""
        if self.function is ops.affine:
            return self.args[2:] == (1, 0)
        return self.function is ops.ratio or self.args[2] == 0.0


IDENTITY: Final = Formula(ops.affine, (SIZE, 1, 1, 0))
"""The batch size itself."""


def fit(sizes: tuple[int, int], values: tuple[Any, Any]) -> Formula | None:
    """The formula that gives both values; None for what is no number or follows no formula."""
    kinds = {type(value) for value in values}
    if kinds == {int}:
        return fit_integer(sizes, values)
    return fit_float(sizes, values) if kinds == {float} else None


def fit_integer(sizes: tuple[int, int], values: tuple[int, int]) -> Formula | None:
    """``size * n // d + o`` that gives both values; None if there is none.

    Exact fractions come first, then fractions rounded down.
    """
    slope = Fraction(values[1] - values[0], sizes[1] - sizes[0])
    exact = (slope.denominator,) if slope.denominator in _DENOMINATORS else ()
    for denominator in (*exact, *_DENOMINATORS):
        numerator = round(slope * denominator)
        offset = values[0] - sizes[0] * numerator // denominator
        formula = Formula(ops.affine, (SIZE, numerator, denominator, offset))
        if numerator and formula(sizes[1]) == values[1]:
            return formula
    return None


def fit_float(sizes: tuple[int, int], values: tuple[float, float]) -> Formula | None:
    """A multiple of the batch size, a quotient by it, or an integer with an offset; None otherwise."""
    candidates = [
        Formula(ops.affine_float, (SIZE, values[0] / sizes[0], 0.0)),
        Formula(ops.ratio, (values[0] * sizes[0], SIZE)),
    ]
    if all(value.is_integer() for value in values):
        slope = Fraction(int(values[1] - values[0]), sizes[1] - sizes[0])
        offset = values[0] - float(slope * sizes[0])
        candidates.append(Formula(ops.affine_float, (SIZE, float(slope), offset)))
    for formula in candidates:
        if (formula(sizes[0]), formula(sizes[1])) == values:
            return formula
    return None
