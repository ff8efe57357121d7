from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.arguments import (
    NO_SCALE,
    given_names,
    model_call,
    read_call,
    ready_made,
    require_updates,
)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", 1),
        ("loss_fn", abs),
        ("weights", [1.0]),
        ("scale", 1.0),
        ("keep_output", False),
        ("optimizer", 1),
    ],
)
def test_what_the_step_was_given(name: str, value: object) -> None:
    none: dict[str, Any] = {
        **dict.fromkeys(["target", "loss_fn", "optimizer"]),
        **{"weights": "samples", "scale": NO_SCALE, "keep_output": True},
    }
    assert list(given_names(**none)) == []
    assert list(given_names(**{**none, name: value})) == [name]


def test_updates_need_an_optimizer_and_gradients_as_they_are() -> None:
    parameters = [torch.zeros(1, requires_grad=True)]
    require_updates(torch.optim.SGD(parameters), NO_SCALE)
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer"):
        require_updates(torch.optim.SGD, NO_SCALE)
    with pytest.raises(TypeError, match="closure"):
        require_updates(torch.optim.LBFGS(parameters), NO_SCALE)
    with pytest.raises(ValueError, match="GradScaler"):
        require_updates(torch.optim.SGD(parameters), torch.tensor(2.0))
