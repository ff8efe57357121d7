"""What counts as a number, of Python's own types or NumPy's."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number by its type; truth values are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Whether a value is a number that can be larger than another."""
    return isinstance(value, Real) and not isinstance(value, bool)
