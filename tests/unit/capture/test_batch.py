from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.capture.batch import Batch, batch_of, find_batch, given_batch, repeated, resized
from fxpipe.capture.signature import flatten
from fxpipe.capture.trace import trace
from fxpipe.ir.capture import Capture


def test_most_tensors_decide_the_size() -> None:
    leaves = [torch.zeros(1, 7), torch.zeros(3, 7), torch.zeros(3), "text", torch.tensor(5)]
    assert find_batch(leaves) == Batch(3, (None, 0, 0, None, None))


def test_the_first_tensor_decides_a_tie() -> None:
    assert find_batch([torch.zeros(5, 2), torch.zeros(4, 2)]) == Batch(5, (0, None))


def test_no_batch_without_dimensions() -> None:
    assert find_batch([torch.tensor(1.0), 3]) is None


def test_sequence_first_inputs_with_a_padding_mask() -> None:
    leaves = [torch.zeros(5, 2, 16), torch.zeros(4, 2, 16), torch.zeros(4, 4), torch.zeros(2, 5)]
    assert find_batch(leaves, dim=1) == Batch(2, (1, 1, None, 0))


def test_sequence_first_tokens() -> None:
    assert find_batch([torch.zeros(6, 3)], dim=1) == Batch(3, (1,))


def test_sizes_to_record_with() -> None:
    def sizes(n: int) -> tuple[int, int]:
        batch = Batch(n, (0,))
        return batch.recorded, batch.other

    assert [sizes(n) for n in (1, 2, 3, 4, 8)] == [(2, 4), (2, 4), (3, 2), (4, 2), (8, 4)]


def test_rows_are_repeated_or_left_out() -> None:
    leaf = torch.tensor([[1.0], [2.0]], requires_grad=True)
    batch = Batch(2, (0, None))
    grown = resized([leaf, "x"], batch, 5)
    assert grown[0].flatten().tolist() == [1, 2, 1, 2, 1]
    assert grown[0].is_leaf
    assert grown[0].requires_grad
    assert resized([leaf, "x"], batch, 1)[0].tolist() == [[1.0]]
    assert resized([leaf, "x"], batch, 2)[0] is leaf
    assert grown[1] == "x"


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(
        self, x: torch.Tensor, w: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = self.linear(x) * w.sum(0)
        return y if mask is None else y * mask


def of_call(capture: Capture | None, *args: torch.Tensor) -> Batch | None:
    leaves, layout = flatten((args, {}))
    return batch_of(leaves, layout, capture)


def rows(n: int) -> torch.Tensor:
    return torch.ones(n, 4)


def test_inputs_given_whole_stay_whole() -> None:
    capture = trace(Adds(), (rows(16), rows(8)))
    assert of_call(None, rows(8), rows(8)) == Batch(8, (0, 0))
    assert of_call(capture, rows(8), rows(8)) == Batch(8, (0, None))
    assert of_call(capture, rows(6), rows(6)) == Batch(6, (0, None))


def test_another_structure_is_guessed() -> None:
    capture = trace(Adds(), (rows(16), rows(8)))
    assert of_call(capture, rows(8), rows(8), rows(8)) == Batch(8, (0, 0, 0))


def test_inputs_of_one_row_are_spread_or_cut() -> None:
    for first in (1, 4):
        capture = trace(Adds(), (rows(4), rows(3), rows(first)))
        assert of_call(capture, rows(6), rows(3), rows(6)) == Batch(6, (0, None, 0))
        assert of_call(capture, rows(6), rows(3), rows(1)) == Batch(6, (0, None, None))
    whole = trace(Adds(), (rows(4), rows(3), rows(1)))
    assert of_call(whole, rows(1), rows(3), rows(1)) == Batch(1, (0, None, None))


def test_other_dimensions_are_looked_at_anew() -> None:
    capture = trace(Adds(), (rows(4), rows(3), torch.ones(())))
    assert of_call(capture, rows(4), rows(3), rows(4)) == Batch(4, (0, None, 0))
    assert of_call(capture, rows(4), rows(3), torch.ones(())) == Batch(4, (0, None, None))


def test_rows_that_disagree_are_told_by_the_most_common_size() -> None:
    capture = trace(Adds(), (rows(4), rows(4), rows(4)))
    assert of_call(capture, rows(5), rows(6), rows(6)) == Batch(6, (0, 0, 0))


def test_dimensions_may_be_given() -> None:
    leaves = [rows(8), rows(8), "text"]
    assert given_batch(leaves, (0, None, None)) == Batch(8, (0, None, None))
    assert given_batch(leaves, (None, 1, None)) == Batch(4, (None, 1, None))
    assert given_batch(leaves, (None, None, None)) is None


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((0,), "1 batch dimensions are given for 3 inputs"),
        ((0, 2, None), "input 1 has no dimension 2"),
        ((None, None, 0), "input 2 has no dimension 0"),
        ((0, 1, None), "different numbers of rows"),
    ],
)
def test_dimensions_that_do_not_fit(dims: tuple[int | None, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        given_batch([rows(8), rows(8), "text"], dims)


def test_a_recording_takes_given_dimensions() -> None:
    model, args = Adds(), (rows(8), rows(8))
    capture = trace(model, args, batch_dims=(0, None))
    assert [leaf.batch_dim for leaf in capture.signature.inputs] == [0, None]
    assert [leaf.batch_dim for leaf in trace(model, args).signature.inputs] == [0, 0]
    whole = trace(model, args, batch_dims=(None, None))
    assert whole.batch_size == 1
    with pytest.raises(ValueError, match="different numbers of rows"):
        trace(model, args, batch_dims=(0, 1))


def test_copies_of_one_row() -> None:
    leaf = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    made = repeated([leaf, "x", leaf], Batch(2, (0, None, None)), -1, 3)
    assert made[0].tolist() == [[3.0, 4.0]] * 3
    assert made[0].requires_grad
    assert made[1:] == ["x", leaf]


def test_what_is_spread_over_the_rows_does_not_count() -> None:
    places, mask = torch.zeros(1, 5), torch.zeros(1, 1, 5, 5)
    found = find_batch([torch.zeros(8, 5), places, mask])
    assert found == Batch(8, (0, None, None))
    assert find_batch([torch.zeros(1, 5), places, torch.zeros(9, 5)]) == Batch(1, (0, 0, None))
