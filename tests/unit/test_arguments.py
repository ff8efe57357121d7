from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from fxpipe.arguments import model_call, read_call, ready_made


class Net(nn.Module):
    def forward(self, x: int, target: int = 0, *, scale: int = 1, **others: int) -> int:
        return x


def test_arguments_beside_the_steps() -> None:
    assert model_call(Net(), (1,), {"other": 2}, None, ["loss_fn", "weights"]) == (
        (1,),
        {"other": 2},
    )


def test_arguments_apart() -> None:
    told = ["target", "scale"]
    assert model_call(Net(), (), {}, ([1], {"target": 2}), told) == ((1,), {"target": 2})


@pytest.mark.parametrize("name", ["target", "scale"])
def test_a_name_that_may_be_the_models_or_the_steps(name: str) -> None:
    with pytest.raises(TypeError, match=f"have an argument '{name}': .* inputs="):
        model_call(Net(), (1,), {}, None, [name])


def test_what_is_given_by_position_is_the_models() -> None:
    assert model_call(Net(), (1, 2), {}, None, ["target"]) == ((1, 2), {})


def test_both_ways_at_once() -> None:
    with pytest.raises(TypeError, match="give no others"):
        model_call(Net(), (1,), {}, ((1,), {}), [])


@pytest.mark.parametrize(
    "given", [(1, {}), ((1,),), ((1,), {}, 3), ((1,), [2]), "ab", None, {1: 2}]
)
def test_what_is_no_pair(given: Any) -> None:
    with pytest.raises(TypeError, match=r"inputs must be \(args, kwargs\)"):
        read_call(given, "inputs")


def test_ready_made_micro_batches_with_and_without_targets() -> None:
    made = (pair for pair in [((1,), {}), ((2,), {"k": 3}, "y")])
    assert ready_made(made, (), {}, None, None) == (
        [((1,), {}), ((2,), {"k": 3})],
        [None, "y"],
    )


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([], ValueError, "micro_batches is empty"),
        (3, TypeError, "must be an iterable, got a int"),
        ({"x": 1}, TypeError, "must be an iterable, got a dict"),
        ([((1,), {}), 5], TypeError, "micro-batch 1 of micro_batches must be"),
        ([(1, 2)], TypeError, r"got a tuple of 2 \(int, int\)"),
    ],
)
def test_what_are_no_micro_batches(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ready_made(given, (), {}, None, None)


@pytest.mark.parametrize(
    "more",
    [
        ((1,), {}, None, None),
        ((), {"x": 1}, None, None),
        ((), {}, ((), {}), None),
        ((), {}, None, 1),
    ],
)
def test_a_whole_batch_beside_micro_batches(more: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="micro_batches= holds the whole batch"):
        ready_made([((1,), {})], *more)
