"""Which conditions do nothing but raise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from fxpipe.capture.checks import passes_if
from tests.unit.capture import conditions


class Truth:
    """Asks its caller's code when its truth is tested."""

    def __init__(self, value: bool) -> None:
        self.value = value
        self.told: list[bool | None] = []

    def __bool__(self) -> bool:
        self.told.append(passes_if(sys._getframe(1), False))
        return self.value

    def item(self) -> bool:
        self.told.append(passes_if(sys._getframe(1), True))
        return self.value


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (conditions.asserts, True),
        (conditions.raises_if, False),
        (conditions.raises_if_not, True),
        (conditions.one_of_two, False),
        (conditions.asks_item, True),
        (conditions.decides, None),
        (conditions.counts, None),
        (conditions.decides_in_message, None),
        (conditions.returns_item, None),
        (conditions.holds, None),
    ],
)
def test_what_a_condition_passes_for(code: Callable[[Any], Any], passes: bool | None) -> None:
    truth = Truth(bool(passes))
    code(truth)
    assert truth.told == [passes]
