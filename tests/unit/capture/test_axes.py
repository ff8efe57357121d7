from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.capture.axes import (
    Axis,
    Mark,
    Sizes,
    batch_axis,
    free_axes,
    marked,
    resized_along,
)
from fxpipe.capture.batch import Batch
from fxpipe.capture.signature import flatten


class Tagger(nn.Module):
    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None = None, *, more: Any = None
    ) -> torch.Tensor:
        return ids


LEAVES, LAYOUT = flatten(((torch.zeros(2, 8),), {"more": {"tables": [torch.zeros(8, 8)]}}))
LENGTH = {"ids": {1: "length"}, "more_tables_0": {0: "length", -1: "length"}}


def test_marks_are_found_by_the_names_of_inputs() -> None:
    marks = marked(Tagger(), LEAVES, LAYOUT, LENGTH)
    assert marks == {(0, 1): Mark("length"), (1, 0): Mark("length"), (1, 1): Mark("length")}
    assert free_axes(marks, LEAVES, Batch(2, (0, None))) == (
        Axis(Mark("length"), 8, ((0, 1), (1, 0), (1, 1))),
    )
    assert marked(Tagger(), LEAVES, LAYOUT, None) == {}


def test_an_argument_that_is_left_out_is_passed_over() -> None:
    assert marked(Tagger(), LEAVES, LAYOUT, {"mask": {1: "length"}}) == {}
    leaves, layout = flatten(((LEAVES[0], None), {}))
    assert marked(Tagger(), leaves, layout, {"mask": {1: "length"}}) == {}


@pytest.mark.parametrize(
    ("dynamic", "error", "message"),
    [
        (
            {"id": {1: "length"}},
            ValueError,
            "no input 'id' \\(this call has 'ids', 'more_tables_0'",
        ),
        ({"ids": {2: "length"}}, ValueError, "has 2 dimensions, no 2"),
        ({"ids": {"1": "length"}}, TypeError, "must be an int"),
        ({"ids": "length"}, TypeError, "must map dimensions to names"),
        ({"ids": {1: "a b"}}, ValueError, "is no name"),
        ({"ids": {1: "0*b"}}, ValueError, "is no name"),
        ({"ids": {1: 8}}, ValueError, "is no name"),
    ],
)
def test_marks_that_do_not_fit(dynamic: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        marked(Tagger(), LEAVES, LAYOUT, dynamic)


def test_only_tensors_have_dimensions() -> None:
    leaves, layout = flatten(((LEAVES[0], 3), {}))
    with pytest.raises(TypeError, match="'mask' is no tensor but 3"):
        marked(Tagger(), leaves, layout, {"mask": {1: "length"}})


def test_dimensions_of_one_name_have_one_size() -> None:
    marks = {(0, 0): Mark("length"), (0, 1): Mark("length")}
    with pytest.raises(ValueError, match="'length', have sizes 2, 8"):
        free_axes(marks, LEAVES, None)
    with pytest.raises(ValueError, match="has the rows of the batch"):
        free_axes({(0, 0): Mark("length")}, LEAVES, Batch(2, (0, None)))


@pytest.mark.parametrize(("size", "step"), [(1, 1), (0, 1), (8, 3)])
def test_sizes_that_are_recorded_as_they_are(size: int, step: int) -> None:
    assert free_axes({(0, 1): Mark("n", step)}, [torch.zeros(2, size)], None) == ()


@pytest.mark.parametrize(("size", "step"), [(2, 1), (3, 1), (8, 1), (64, 16), (16, 16)])
def test_sizes_to_record(size: int, step: int) -> None:
    axis = Axis(Mark("n", step), size, ((0, 1),))
    for tried in (axis.others(), axis.near(), axis.far()):
        assert tried
        assert all(n >= 2 and n % step == 0 and n != size for n in tried)
    assert all(2 <= n < size and n % step == 0 for n in axis.less())
    assert axis.others()[0] > size  # growing keeps every element of the example
    assert axis.far()[0] not in axis.near()


def test_other_sizes_keep_the_first_and_the_last_element_and_the_order() -> None:
    leaf = torch.tensor([[1.0, 2.0, 3.0, 4.0]], requires_grad=True)
    axis = Axis(Mark("n"), 4, ((0, 1),))
    longer = resized_along([leaf, "x"], axis, 6)
    assert longer[0].tolist() == [[1.0, 1.0, 2.0, 2.0, 3.0, 4.0]]
    assert longer[0].requires_grad
    assert longer[1] == "x"
    assert resized_along([leaf], axis, 2)[0].tolist() == [[1.0, 4.0]]
    assert resized_along([leaf], axis, 4)[0] is leaf


def test_rows_are_repeated() -> None:
    axis = batch_axis(Batch(2, (0, None)))
    leaf = torch.tensor([1, 2])
    assert axis.size == 2
    assert resized_along([leaf, leaf], axis, 3)[0].tolist() == [1, 2, 1]
    assert resized_along([leaf, leaf], axis, 3)[1] is leaf


def test_differences_in_words() -> None:
    sizes = Sizes(
        (batch_axis(Batch(2, (0,))), Axis(Mark("n", 2), 8, ((0, 1),))), ((2, 8), (2, 4), (3, 6))
    )
    assert sizes.difference(1) == "with n 4 instead of 8"
    assert sizes.difference(2) == "with 3 rows instead of 2 and n 6 instead of 8"
    assert Mark("n", 2).label == "2*n"
