"""Which numbers are only compared, and with what."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fxpipe.capture.comparisons import Comparison, comparisons_of, passing, reads_number
from tests.unit.capture import numbers

LE, LT, GT, NE = operator.le, operator.lt, operator.gt, operator.ne


class Number:
    """Asks its caller's code when its number is taken."""

    limit = 6

    def __init__(self) -> None:
        self.told: tuple[Comparison, ...] = ()

    def item(self) -> int:
        self.told = comparisons_of(sys._getframe(1), reads_number)
        return 5

    def __int__(self) -> int:
        self.told = comparisons_of(sys._getframe(1), reads_number)
        return 5


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (numbers.compares, [Comparison(LE, 4, True, None)]),
        (numbers.compares_on_the_right, [Comparison(GT, 8, False, None)]),
        (numbers.between, [Comparison(LE, 0, False, None), Comparison(LT, 6, True, None)]),
        (numbers.asserts, [Comparison(LE, 9, True, True)]),
        (numbers.raises, [Comparison(LT, 9, True, True)]),
        (numbers.named, [Comparison(LT, -1, True, False), Comparison(GT, 3, True, None)]),
        (numbers.casts, [Comparison(NE, 8, True, None)]),
        (numbers.asserts_either, [Comparison(LE, 9, True, None)]),
        (numbers.caught, [Comparison(LE, 9, True, None)]),
        (numbers.returns, []),
        (numbers.adds, []),
        (numbers.named_and_used, []),
        (numbers.named_twice, []),
        (numbers.bound_changes, []),
        (numbers.closes_over, []),
        (numbers.compares_with_a_call, []),
        (numbers.is_in, []),
    ],
)
def test_what_a_number_is_compared_with(
    code: Callable[[Any], Any], found: list[Comparison]
) -> None:
    number = Number()
    code(number)
    assert list(number.told) == found


def test_code_without_a_text_tells_nothing() -> None:
    made: dict[str, Any] = {}
    exec("def compares(x):\n    return x.item() < 3\n", made)
    number = Number()
    assert made["compares"](number) is False
    assert number.told == ()


@pytest.mark.parametrize(
    ("compared", "fits"),
    [
        ([Comparison(LT, 3, True, True)], True),
        ([Comparison(GT, 3, True, True), Comparison(LE, 4, True, True)], True),
        ([Comparison(NE, 3, False, True)], True),
        ([Comparison(LT, 0, True, True), Comparison(GT, 0, True, True)], False),
    ],
)
def test_a_number_that_passes(compared: list[Comparison], fits: bool) -> None:
    number = passing(compared)
    assert all(each.outcome(number) == each.passes for each in compared) == fits
