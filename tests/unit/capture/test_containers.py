from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fxpipe.capture.containers import (
    attributes,
    child,
    holds_tensors,
    take_apart,
    tensors,
)

T = torch.zeros(2)
Point = namedtuple("Point", "x y")


@dataclass(slots=True)
class Slotted:
    x: Any
    y: int = 1


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


class Output(OrderedDict[str, Any]):
    """Like the output classes of model libraries: items are attributes too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Words(list[Any]):
    pass


def output() -> Output:
    made = Output()
    made["x"] = T
    made.note = "kept"
    return made


VALUES = {
    "list": [T, 1],
    "tuple": (T, None),
    "dict": {"x": T, 3: "y"},
    "named tuple": Point(T, 2),
    "struct sequence": torch.max(torch.eye(2), 0),
    "ordered dict": OrderedDict(x=T),
    "default dict": defaultdict(list, {"x": T}),
    "output class": output(),
    "list subclass": Words([T, 1]),
    "slots": Slotted(T),
    "object": Plain(T),
}


@pytest.mark.parametrize("name", VALUES)
def test_containers_come_apart_and_together(name: str) -> None:
    value = VALUES[name]
    parts, children = take_apart(value)  # type: ignore[misc]
    made = parts.make(children)
    assert type(made) is type(value)
    assert made is not value
    again, same = take_apart(made)  # type: ignore[misc]
    assert again == parts
    assert [id(inner) for inner in same] == [id(inner) for inner in children]
    for step, inner in zip(parts.steps(), children, strict=True):
        assert child(value, step) is inner


def test_default_factory_and_extra_attributes_survive() -> None:
    parts, children = take_apart(VALUES["default dict"])  # type: ignore[misc]
    assert parts.make(children)["new"] == []
    parts, children = take_apart(VALUES["output class"])  # type: ignore[misc]
    made = parts.make(children)
    assert made.note == "kept"
    assert made.x is T


@pytest.mark.parametrize(
    "value", [T, 1, "text", torch.float32, torch.nn.Linear(1, 1), len, lambda: 0, int, range(3)]
)
def test_closed_values_are_not_taken_apart(value: Any) -> None:
    assert take_apart(value) is None


def test_tensors_in_nested_and_cyclic_values() -> None:
    loop: list[Any] = [T, {"a": Plain((T, 3))}]
    loop.append(loop)
    assert [tensor is T for tensor in tensors(loop)] == [True, True]
    assert holds_tensors(loop)
    assert not holds_tensors([1, Plain("x")])


def test_attributes_of_slots_and_dict() -> None:
    assert list(attributes(Slotted(1))) == ["x", "y"]
    assert attributes(Plain(1)) == {"x": 1}
