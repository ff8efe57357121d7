"""How a number follows the sizes of a call, found from its values in recordings of several sizes.

A *point* holds the sizes of one recording: the rows of the batch first, then those of the other
dimensions that may vary. The first point is the base; the next ones differ from it in one size each,
and the last one may differ in all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, product
from math import gcd, prod
from typing import Any, Final, TypeAlias

from fxpipe import ops

Point: TypeAlias = tuple[int, ...]

_DENOMINATORS: Final = (1, 2, 4, 3, 8, 16)
_SHARES: Final = (5, 10, 20, 100)
_OFFSETS: Final = (0, 1, -1, 2, -2)
"""What may be added to a product of sizes, such as the class token of an image's patches."""


@dataclass(frozen=True, slots=True)
class Size:
    """Stands for a size among the arguments of a `Formula`: its position in a point."""

    axis: int = 0


@dataclass(frozen=True, slots=True)
class Formula:
    """A function with sizes, other formulas and constants as its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self, point: Point) -> Any:
        """The number at a point."""
        return self.function(*(_at(arg, point) for arg in self.args))

    @property
    def axes(self) -> tuple[int, ...]:
        """Positions of the sizes it depends on, ascending."""
        found: set[int] = set()
        for arg in self.args:
            if isinstance(arg, Size):
                found.add(arg.axis)
            elif isinstance(arg, Formula):
                found.update(arg.axes)
        return tuple(sorted(found))

    @property
    def is_certain(self) -> bool:
        """Whether two values are enough to believe it: a whole multiple, or a quotient."""
        if self.function is ops.affine:
            return self.args[2:] == (1, 0)
        if self.function is ops.affine_float:
            return bool(self.args[2] == 0.0)
        return self.function is ops.ratio

    def may_round(self, axis: int, step: int = 1) -> bool:
        """Whether it has a fraction of a size, which a number that is rounded may seem to have.

        ``int(0.7 * size)`` is ``3 * size // 4 - 1`` at 8, 16 and 17. Whole multiples cannot be mistaken:
        what is rounded from the size differs from them ever more as the size grows.

        Args:
            axis: which size.
            step: all sizes are multiples of it.
        """
        if axis not in self.axes:
            return False
        if self.function is ops.affine:
            whole = isinstance(self.args[0], Size) and step * self.args[1] % self.args[2] == 0
            rounds = self.args[2] != 1 and not whole
        elif self.function is ops.affine_float:
            rounds = not float(self.args[1]).is_integer()
        else:
            rounds = self.function is ops.ratio and self.args[0] != 1
        return rounds or any(isinstance(a, Formula) and a.may_round(axis, step) for a in self.args)


def _at(arg: Any, point: Point) -> Any:
    if isinstance(arg, Size):
        return point[arg.axis]
    return arg(point) if isinstance(arg, Formula) else arg


def identity(axis: int = 0) -> Formula:
    """The size itself."""
    return Formula(ops.affine, (Size(axis), 1, 1, 0))


def fit(points: Sequence[Point], values: Sequence[Any]) -> Formula | None:
    """The simplest formula that gives all values; None for what is no number or follows no formula."""
    kinds = {type(value) for value in values}
    if kinds not in ({int}, {float}):
        return None
    axes = _moving(points, values)
    if len(axes) == 1:
        sizes = [point[axes[0]] for point in points]
        one = fit_integer if kinds == {int} else fit_float
        return one(sizes, values, axes[0])
    candidates = (
        _integers(points, values, axes) if kinds == {int} else _floats(points[0], values[0], axes)
    )
    return next((formula for formula in candidates if _holds(formula, points, values)), None)


def _holds(formula: Formula, points: Sequence[Point], values: Sequence[Any]) -> bool:
    return all(formula(point) == value for point, value in zip(points, values, strict=True))


def _moving(points: Sequence[Point], values: Sequence[Any]) -> tuple[int, ...]:
    """The axes along which the values change while all other sizes stay."""
    axes = range(len(points[0]))
    return tuple(
        axis for axis in axes if len({value for _, value in _along(axis, points, values)}) > 1
    )


def _along(axis: int, points: Sequence[Point], values: Sequence[Any]) -> list[tuple[int, Any]]:
    """Size and value at the base and at the points that differ from it in one size."""
    base = points[0]
    return [
        (point[axis], value)
        for point, value in zip(points, values, strict=True)
        if all(a == b for at, (a, b) in enumerate(zip(point, base, strict=True)) if at != axis)
    ]


# -- one size ----------------------------------------------------------------------------------------


def fit_integer(sizes: Sequence[int], values: Sequence[int], axis: int = 0) -> Formula | None:
    """``size * n // d + o`` that gives all values; None if there is none.

    Exact fractions come first, then fractions rounded down. More than two different sizes also tell
    ``(size * n + c) // d + o`` and multiples of the square.
    """
    samples = sorted(set(zip(sizes, values, strict=True)))
    (one, first), (two, second) = samples[0], samples[-1]
    if one == two:
        return None
    slope = Fraction(second - first, two - one)
    shifts = len(samples) > 2
    candidates = _lines(Size(axis), one, first, slope, shifts)
    if shifts:
        candidates = chain(candidates, _squares(axis, samples))
    return next(
        (f for f in candidates if all(f(_only(axis, n)) == value for n, value in samples)), None
    )


def _only(axis: int, size: int) -> Point:
    return (0,) * axis + (size,)


def _lines(size: Any, n: int, value: int, slope: Fraction, shifts: bool) -> Iterator[Formula]:
    """Lines through a sample: exact, rounded down, and, with `shifts`, rounded up and between."""
    exact = (slope.denominator,) if slope.denominator in (*_DENOMINATORS, *_SHARES) else ()
    for denominator in (*exact, None, *_DENOMINATORS):
        if denominator is None:
            yield from _shares(size, n, value) if shifts else ()
            continue
        numerator = round(slope * denominator)
        if not numerator:
            continue
        offset = value - n * numerator // denominator
        yield Formula(ops.affine, (size, numerator, denominator, offset))
        if not shifts or gcd(numerator, denominator) > 1:
            continue
        for shift in (denominator - 1, *range(1, denominator - 1)):
            shifted = Formula(ops.affine, (size, numerator, 1, shift))
            offset = value - (n * numerator + shift) // denominator
            yield Formula(ops.affine, (shifted, 1, denominator, offset))


def _shares(size: Any, n: int, value: int) -> Iterator[Formula]:
    """Shares that give a sample, rounded down: ``int(0.7 * size)``."""
    for denominator in _SHARES:
        for numerator in range(-(-value * denominator // n), (value + 1) * denominator // n + 1):
            if numerator and n * numerator // denominator == value:
                yield Formula(ops.affine, (size, numerator, denominator, 0))


def _squares(axis: int, samples: Sequence[tuple[int, int]]) -> Iterator[Formula]:
    """Multiples of ``size * (size + k)``, with an offset: tables of positions by positions."""
    n, value = samples[0]
    for offset, shift in product(_OFFSETS, (0, 1, -1)):
        scale = Fraction(value - offset, n * (n + shift)) if n + shift else Fraction()
        exact = all(scale * m * (m + shift) + offset == other for m, other in samples)
        if scale and exact:
            other = Size(axis) if shift == 0 else Formula(ops.affine, (Size(axis), 1, 1, shift))
            square = Formula(operator.mul, (Size(axis), other))
            yield Formula(ops.affine, (square, scale.numerator, scale.denominator, offset))


def fit_float(sizes: Sequence[int], values: Sequence[float], axis: int = 0) -> Formula | None:
    """A multiple of the size, a quotient by it, or an integer with an offset; None otherwise."""
    size, samples = Size(axis), list(dict(zip(sizes, values, strict=True)).items())
    candidates = [
        Formula(ops.affine_float, (size, values[0] / sizes[0], 0.0)),
        Formula(ops.ratio, (values[0] * sizes[0], size)),
    ]
    if all(value.is_integer() for value in values):
        (one, first), (two, second) = samples[0], samples[1]
        slope = Fraction(int(second - first), two - one)
        offset = first - float(slope * one)
        candidates.append(Formula(ops.affine_float, (size, float(slope), offset)))
    for formula in candidates:
        if all(formula(_only(axis, n)) == value for n, value in samples):
            return formula
    return None


# -- several sizes -----------------------------------------------------------------------------------


def _integers(
    points: Sequence[Point], values: Sequence[int], axes: Sequence[int]
) -> Iterator[Formula]:
    """Products of sizes with an offset, and sums of what each size gives alone."""
    for offset in _OFFSETS:
        rest = [value - offset for value in values]
        factors = [list(_factors(axis, _along(axis, points, rest))) for axis in axes]
        for chosen in product(*factors):
            base = prod(_at(factor, points[0]) for factor in chosen)
            scale = Fraction(rest[0], base) if base else Fraction()
            if scale and _is_exact(scale, chosen, points, rest):
                args = (_folded(operator.mul, chosen), scale.numerator, scale.denominator, offset)
                yield Formula(ops.affine, args)
    parts = []
    for axis in axes:
        along = _along(axis, points, values)
        parts.append(fit_integer([n for n, _ in along], [value for _, value in along], axis))
    if all(part is not None for part in parts):
        surplus = (len(axes) - 1) * values[0]
        yield Formula(ops.affine, (_folded(operator.add, parts), 1, 1, -surplus))


def _is_exact(
    scale: Fraction, factors: Sequence[Any], points: Sequence[Point], values: Sequence[int]
) -> bool:
    return all(
        scale * prod(_at(factor, point) for factor in factors) == value
        for point, value in zip(points, values, strict=True)
    )


def _factors(axis: int, samples: Sequence[tuple[int, int]]) -> Iterator[Any]:
    """What a product may have for one size: the size, a line through it, a fraction rounded down."""
    size = Size(axis)
    (one, first), (two, second) = samples[0], samples[-1]
    candidates: list[Any] = [size]
    if second != first:
        zero = one - Fraction(first * (two - one), second - first)  # where a line is 0
        line = (size, zero.denominator, 1, -zero.numerator)
        candidates.append(Formula(ops.affine, line))
    for denominator in _DENOMINATORS[1:]:
        candidates.append(Formula(ops.affine, (size, 1, denominator, 0)))
        up = Formula(ops.affine, (size, 1, 1, denominator - 1))
        candidates.append(Formula(ops.affine, (up, 1, denominator, 0)))
    candidates.append(Formula(operator.mul, (size, size)))
    for factor in candidates:
        base = _at(factor, _only(axis, one))
        if base and all(first * _at(factor, _only(axis, n)) == v * base for n, v in samples):
            yield factor


def _floats(base: Point, value: float, axes: Sequence[int]) -> Iterator[Formula]:
    """Multiples of a product of sizes, and quotients by one."""
    sizes = [Size(axis) for axis in axes]
    whole = prod(base[axis] for axis in axes)
    if len(axes) > 1:
        together = _folded(operator.mul, sizes)
        yield Formula(ops.affine_float, (together, value / whole, 0.0))
        yield Formula(ops.ratio, (value * whole, together))


def _folded(function: Callable[..., Any], parts: Sequence[Any]) -> Any:
    made = parts[0]
    for part in parts[1:]:
        made = Formula(function, (made, part))
    return made
