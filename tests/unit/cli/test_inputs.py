from __future__ import annotations

import pytest
import torch
import typer

from fxpipe.cli.inputs import make_inputs, read_dynamic


def test_shapes_and_types() -> None:
    args, kwargs = make_inputs(["f32[2,3]", "bf16[4]", "mask=bool[2, 1]", "f64[]"], 2)
    assert [(a.shape, a.dtype) for a in args] == [
        ((2, 3), torch.float32),
        ((4,), torch.bfloat16),
        ((), torch.float64),
    ]
    assert list(kwargs) == ["mask"]
    assert (kwargs["mask"].shape, kwargs["mask"].dtype) == ((2, 1), torch.bool)


def test_integers_stay_below_high() -> None:
    ((ids,), _) = make_inputs(["i64[1000]"], 7)
    assert sorted(ids.unique().tolist()) == list(range(7))


def test_the_seed_decides() -> None:
    torch.manual_seed(3)
    ((one,), _) = make_inputs(["f32[5]"], 2)
    torch.manual_seed(3)
    ((two,), _) = make_inputs(["f32[5]"], 2)
    assert torch.equal(one, two)


@pytest.mark.parametrize("text", ["f32", "f32(3)", "3,3", "f32[a]", "=f32[3]"])
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no input: expected"):
        make_inputs([text], 2)


def test_an_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(typer.BadParameter, match=r"no type 'f31'; known are f64, f32.* bool"):
        make_inputs(["f31[3]"], 2)


def test_dynamic_dimensions() -> None:
    assert read_dynamic(["ids:1=length", "x:-1=16*width", "ids:2=a"]) == {
        "ids": {1: "length", 2: "a"},
        "x": {-1: "16*width"},
    }
    assert read_dynamic(None) is None


@pytest.mark.parametrize("text", ["ids", "ids:1", "ids=length", "ids:x=length", "1:1=length"])
def test_what_marks_no_dimension(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="marks no dimension"):
        read_dynamic([text])
