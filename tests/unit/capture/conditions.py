"""Functions with conditions, most of which only raise (here, as pytest rewrites asserts in tests)."""

from __future__ import annotations

from typing import Any


def asserts(x: Any) -> None:
    assert x, f"not {x.value!r}, in {__name__}"


def raises_if(x: Any) -> None:
    if x:
        message = "no"
        raise ValueError(message)


def raises_if_not(x: Any) -> int:
    if not x:
        raise ValueError
    return 3


def one_of_two(x: Any) -> None:
    if x.value is None or x:
        raise ValueError


def asks_item(x: Any) -> None:
    if not x.item():
        raise ValueError


def decides(x: Any) -> int:
    if x:
        return 1
    return 2


def counts(x: Any) -> None:
    if x:
        x.value = 3
        raise ValueError


def decides_in_message(x: Any) -> None:
    if x:
        raise ValueError("a" if x.value else "b")


def returns_item(x: Any) -> Any:
    return x.item()


def holds(x: Any) -> bool:
    return bool(x)
