"""Functions that take numbers of `Number` objects (here, as pytest rewrites asserts in tests)."""

from __future__ import annotations

from typing import Any

LIMIT = 4


def compares(x: Any) -> bool:
    return bool(x.item() <= LIMIT)


def compares_on_the_right(x: Any) -> bool:
    return 2 * LIMIT > x.item()


def between(x: Any) -> bool:
    return 0 <= x.item() < x.limit


def asserts(x: Any) -> None:
    assert x.item() <= 9 and x, "too large"  # noqa: PT018 - what users write


def raises(x: Any) -> None:
    if not x.item() < 9 or x is None:
        raise ValueError


def named(x: Any, low: int = -1) -> int:
    number = x.item()
    if number < low:
        raise ValueError(f"{number} is too small")
    return 1 if number > 3 else 2


def casts(x: Any) -> bool:
    return int(x) != 8


def asserts_either(x: Any) -> None:
    assert x.item() <= 9 or x


def caught(x: Any) -> int:
    try:
        assert x.item() <= 9
    except AssertionError:
        return 1
    return 2


# ---- more than comparing ---------------------------------------------------------------------------


def returns(x: Any) -> Any:
    return x.item()


def adds(x: Any) -> bool:
    return bool(x.item() + 1 < 3)


def named_and_used(x: Any) -> float:
    number = x.item()
    return 1.0 if number > 3 else float(number)


def named_twice(x: Any) -> bool:
    number = x.item()
    number = number + 1
    return bool(number > 3)


def bound_changes(x: Any) -> bool:
    number = x.item()
    bound = 3
    return bool(number > bound)


def closes_over(x: Any) -> Any:
    number = x.item()
    return lambda: number > 3


def compares_with_a_call(x: Any) -> bool:
    return bool(x.item() > len("abc"))


def is_in(x: Any) -> bool:
    return x.item() in (1, 2)
