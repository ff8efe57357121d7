from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.capture.execute import GraphRunner
from fxpipe.capture.signature import argument_names, flatten
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture.small import Box, Containers, Pair, Result

X, Y = torch.zeros(2, 4), torch.ones(2, 4)


def test_tensor_that_occurs_twice_in_a_result_is_one_leaf() -> None:
    assert len(flatten([X, {"again": X}, Y])[0]) == 3
    leaves, layout = flatten([X, {"again": X}, Y], shared=True)
    assert len(leaves) == 2
    made = layout.unflatten([10, 20])
    assert made == [10, {"again": 10}, 20]


def test_equal_constants_are_leaves_of_their_own() -> None:
    leaves, _ = flatten((1, 1, None))
    assert leaves == [1, 1, None]


def test_objects_are_taken_apart_only_if_they_hold_tensors() -> None:
    settings = Box("quiet")
    leaves, layout = flatten({"box": Box(X), "settings": settings})
    assert leaves == [X, settings]
    made = layout.unflatten([Y, settings])
    assert made["box"].value is Y
    assert type(made["box"]) is Box


def test_every_result_is_made_of_new_containers() -> None:
    value = {"pair": Pair(X, [Y]), "result": Result(X)}
    _, layout = flatten(value)
    one, two = layout.unflatten([1, 2, 1, None, 3]), layout.unflatten([1, 2, 1, None, 3])
    assert one == two == {"pair": Pair(1, [2]), "result": Result(1)}
    assert one["pair"].second is not two["pair"].second


def test_layouts_compare_and_hash_by_value() -> None:
    one, two = flatten({"a": (X, 1)})[1], flatten({"a": (Y, 2)})[1]
    assert one == two
    assert hash(one) == hash(two)
    assert one != flatten({"b": (X, 1)})[1]


def test_container_that_holds_itself() -> None:
    loop: list[Any] = [X]
    loop.append(loop)
    with pytest.raises(CaptureError, match="among the arguments or results holds itself"):
        flatten(loop)


class Takes(nn.Module):
    def forward(self, image: torch.Tensor, *rest: Any, scale: float = 1.0, **more: Any) -> None: ...


def test_names_are_those_of_forward() -> None:
    call = ((X, [Y, {"k": X}]), {"scale": 2.0, "self": Y, "image_1": Y})
    leaves, layout = flatten(call)
    names = argument_names(Takes(), layout)
    assert len(leaves) == len(names)
    assert names == ["image", "arg_1_0", "arg_1_1_k", "scale", "self_", "image_1"]


def test_call_signature_of_a_capture() -> None:
    model = Containers()
    capture = trace(model, ({"x": X, "more": [Y, None]},), {"bias": None})
    inputs = capture.signature.inputs
    assert [(leaf.name, leaf.batch_dim) for leaf in inputs] == [
        ("batch_x", 0),
        ("batch_more_0", 0),
        ("batch_more_1", None),
        ("bias", None),
    ]
    assert [leaf.name for leaf in capture.signature.placeholders] == ["batch_x", "batch_more_0"]
    made = capture.signature.output.unflatten(list(range(len(capture.signature.outputs))))
    assert type(made["result"]) is Result
    assert type(made["result"].pair) is Pair
    assert type(made["box"]) is Box


def test_one_tensor_in_two_arguments_may_be_two_in_the_next_call() -> None:
    class Adds(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - 2 * y

    for mode in ("real", "fake"):
        capture = trace(Adds(), (X, X), mode=mode)
        assert len(capture.signature.placeholders) == 2
        assert GraphRunner.of(capture, Adds()).run([X, Y])[0].equal(X - 2 * Y)


def test_one_tensor_twice_in_a_result_stays_one() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            y = x + 1
            return [y, y]

    capture = trace(Twice(), (X,))
    assert len(capture.signature.outputs) == 1
    one, two = capture.signature.output.unflatten([X])
    assert one is two


@pytest.mark.parametrize("kind", ["generator", "list_iterator", "zip"])
def test_an_iterator_is_refused(kind: str) -> None:
    """The recording would read it, and leave nothing to the run."""
    found = {
        "generator": (x for x in [X]),
        "list_iterator": iter([X]),
        "zip": zip([X], strict=True),
    }
    with pytest.raises(CaptureError, match=f"a {kind} is among the arguments"):
        flatten(([X, {"more": found[kind]}], {}))
