from __future__ import annotations

import pytest
import torch
import typer

from fxpipe.cli.example import load_example
from tests.unit.cli import models

HERE = "tests.unit.cli.models"


@pytest.mark.parametrize(
    ("name", "inputs", "num_args", "names"),
    [
        ("with_args", None, 1, []),
        ("with_kwargs", None, 1, ["mask"]),
        ("with_kwargs", ["f32[4,8]"], 1, []),
        ("Skip", ["f32[4,8]", "mask=f32[4,8]"], 1, ["mask"]),
        ("READY", ["f32[4,8]"], 1, []),
    ],
)
def test_models_and_their_inputs(
    name: str, inputs: list[str] | None, num_args: int, names: list[str]
) -> None:
    example = load_example(f"{HERE}:{name}", inputs, 2, 0, evaluation=False)
    assert isinstance(example.model, models.Skip)
    assert len(example.args) == num_args
    assert list(example.kwargs) == names
    assert example.model.training


def test_the_seed_makes_model_and_inputs_the_same() -> None:
    one = load_example(f"{HERE}:with_args", None, 2, 5, evaluation=True)
    two = load_example(f"{HERE}:with_args", None, 2, 5, evaluation=True)
    assert torch.equal(one.args[0], two.args[0])
    assert torch.equal(one.model.layers[0].weight, two.model.layers[0].weight)  # type: ignore[union-attr, index]
    assert not one.model.training


def test_a_micro_batch_is_the_first_rows() -> None:
    example = load_example(f"{HERE}:with_kwargs", None, 2, 0, evaluation=False)
    assert example.rows() == 8
    args, kwargs = example.micro_batch(4)
    assert torch.equal(args[0], example.args[0][:2])
    assert kwargs["mask"].shape == (2, 8)
    assert example.micro_batch(100)[0][0].shape == (1, 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Skip", "returns a model without inputs"),
        ("number", "returned int: expected a model"),
        ("__name__", "neither a model nor a function"),
    ],
)
def test_what_is_no_example_is_refused(name: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        load_example(f"{HERE}:{name}", None, 2, 0, evaluation=False)
