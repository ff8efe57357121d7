from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.capture.splits import Splits
from fxpipe.capture.trace import trace
from fxpipe.example import Examples
from fxpipe.ir.capture import Capture
from fxpipe.ir.split import Replicate, Split
from fxpipe.options import Options


class Scaled(nn.Module):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return x * scale


def examples(
    split: dict[str, Split | Replicate] | None = None, first: Capture | None = None
) -> Examples:
    model = Scaled()
    with fxpipe.compile(model, ["cpu"], chunks=4, split=split) as pipe:
        options: Options = pipe._options
    return Examples(model, options, Splits(model, split or {}), first)


def sizes(x: Tensor, scale: Tensor, chunks: int, made: Examples) -> list[list[int]]:
    example = made.micro_batch((x,), {"scale": scale}, chunks)
    return [list(example.args[0].shape), list(example.kwargs["scale"].shape)]


def test_an_example_has_the_rows_of_the_first_micro_batch() -> None:
    made = examples()
    x, scale = torch.randn(10, 7), torch.randn(7)
    assert sizes(x, scale, 4, made) == [[3, 7], [7]]
    assert sizes(x, scale, 1, made) == [[10, 7], [7]]
    assert sizes(x, scale, 10, made) == [[2, 7], [7]]  # two rows at least


def test_what_is_given_whole_does_not_look_like_rows() -> None:
    assert sizes(torch.randn(10, 3), torch.randn(3), 4, examples()) == [[4, 3], [3]]


def test_whole_calls_are_examples_as_they_are() -> None:
    made = examples({"x": Replicate(), "scale": Replicate()})
    x, scale = torch.randn(4, 7), torch.randn(7)
    example = made.micro_batch((x,), {"scale": scale}, 4)
    assert example.args[0] is x
    assert example.batch_dims == (None, None)
    assert not example.may_be_whole


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="the batch is empty"):
        examples().micro_batch((torch.randn(0, 7),), {"scale": torch.randn(7)}, 4)


def test_calls_that_were_found_to_have_no_rows_are_cut_no_more() -> None:
    x, scale = torch.randn(10, 7), torch.randn(10, 7)
    first = trace(Scaled(), (x,), {"scale": scale})
    made = examples(first=first)
    assert sizes(x, scale, 4, made) == [[3, 7], [3, 7]]
    whole = trace(Scaled(), (x,), {"scale": scale}, batch_dims=[None, None])
    made.learn_without_rows((x,), {"scale": scale}, whole)
    assert sizes(x, scale, 4, made) == [[10, 7], [10, 7]]
