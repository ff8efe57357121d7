from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fxpipe.ir.signature import CallSignature, InputLeaf, OutputLeaf
from fxpipe.runtime.micro_batch import (
    gather,
    gather_input_gradient,
    scatter,
    scatter_gradient,
    scatter_target,
    weighted_sum,
)
from tests.captures import Structure


def signature(*dims: int | None) -> CallSignature:
    leaves = tuple(InputLeaf(f"in{n}", f"in{n}", None, dim) for n, dim in enumerate(dims))
    return CallSignature(Structure((leaves, {})), leaves, Structure((1,)), (OutputLeaf(0, True),))


@given(rows=st.integers(1, 20), chunks=st.integers(1, 20))
def test_rows_are_shared_out_as_tensor_split_does(rows: int, chunks: int) -> None:
    x = torch.arange(rows)
    batches = scatter(signature(0), [x], chunks)
    expected = x.tensor_split(min(rows, chunks))
    assert batches.count == len(expected)
    assert batches.rows == tuple(len(piece) for piece in expected)
    assert all(map(torch.equal, [given[0] for given in batches.inputs], expected))
    assert sum(batches.weights) == pytest.approx(1.0)


def test_each_input_along_its_own_dimension() -> None:
    x, y, whole = torch.randn(6, 2), torch.randn(3, 6), torch.randn(6)
    batches = scatter(signature(0, 1, None), [x, y, whole], 3)
    for m, given_ in enumerate(batches.inputs):
        assert torch.equal(given_[0], x[2 * m : 2 * m + 2])
        assert torch.equal(given_[1], y[:, 2 * m : 2 * m + 2])
        assert torch.equal(given_[2], whole)


def test_pieces_are_detached_and_say_whether_a_gradient_is_wanted() -> None:
    x = (torch.randn(4, 2, requires_grad=True) * 2).requires_grad_()
    batches = scatter(signature(0, 0), [x, torch.randn(4)], 2)
    for wanted, other in batches.inputs:
        assert wanted.requires_grad
        assert wanted.is_leaf
        assert not other.requires_grad
        assert wanted.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_without_batched_inputs_there_is_one_micro_batch() -> None:
    batches = scatter(signature(None), [torch.randn(4)], 8)
    assert batches.count == 1
    assert batches.weights == (1.0,)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([torch.ones(4, 2), torch.ones(5)], "different numbers of rows .in0: 4, in1: 5."),
        ([torch.ones(0, 2), torch.ones(0)], "0 rows"),
        ([torch.ones(4, 2), torch.tensor(1.0)], "'in1' is cut along dimension 0"),
        ([torch.ones(4, 2)], "2 tensors were recorded as inputs, 1 are given"),
    ],
)
def test_inputs_that_cannot_be_cut(tensors: Sequence[Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scatter(signature(0, 0), tensors, 2)


def test_targets_are_cut_like_the_batch() -> None:
    target = {
        "y": torch.arange(5),
        "scale": torch.tensor(2.0),
        "name": "z",
        "more": [torch.ones(5, 1)],
    }
    parts = scatter_target(target, (2, 2, 1))
    assert [part["y"].tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    assert [part["more"][0].shape[0] for part in parts] == [2, 2, 1]
    assert all(part["scale"].item() == 2.0 and part["name"] == "z" for part in parts)
    assert scatter_target(None, (2, 2)) == [None, None]


def test_a_target_of_another_size() -> None:
    with pytest.raises(ValueError, match="its first dimension must be 5"):
        scatter_target(torch.ones(6), (2, 3))


def test_rows_are_joined_and_their_gradient_cut_again() -> None:
    leaf = OutputLeaf(1, True)
    pieces = [torch.randn(3, 2), torch.randn(3, 1)]
    joined = gather(leaf, pieces, (2 / 3, 1 / 3))
    assert torch.equal(joined.value, torch.cat(pieces, 1))
    cut = scatter_gradient(leaf, joined, joined.value, (2, 1))
    assert all(map(torch.equal, cut, pieces))


def test_more_rows_than_the_batch_has() -> None:
    """An output with two rows for each row of the batch is cut by its own pieces."""
    leaf = OutputLeaf(0, True)
    pieces = [torch.randn(4, 3), torch.randn(2, 3)]
    joined = gather(leaf, pieces, (2 / 3, 1 / 3))
    cut = scatter_gradient(leaf, joined, joined.value, (2, 1))
    assert [len(piece) for piece in cut if piece is not None] == [4, 2]


def test_scalars_are_averaged_by_rows() -> None:
    leaf = OutputLeaf(None, True)
    weights = (3 / 5, 2 / 5)
    pieces = [torch.tensor(1.0, requires_grad=True), torch.tensor(6.0, requires_grad=True)]
    joined = gather(leaf, pieces, weights)
    assert joined.value.item() == pytest.approx(3.0)
    grads = torch.autograd.grad(joined.value, pieces, torch.tensor(5.0))
    cut = scatter_gradient(leaf, joined, torch.tensor(5.0), (3, 2))
    assert all(map(torch.equal, cut, grads))


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([torch.ones(3), torch.ones(3)], "same"),
        ([torch.ones(3), torch.zeros(3)], "each"),
        ([torch.ones(3), torch.ones(2)], "each"),
        ([torch.tensor(4), torch.tensor(4)], "same"),
        ([torch.tensor(4), torch.tensor(5)], "each"),
        (["a", "a"], "same"),
        ([1, 2], "each"),
        ([1, True], "each"),
        ([None, None], "same"),
        ([torch.ones(1), None], "each"),
        ([(1, "a"), (1, "a")], "same"),
    ],
)
def test_what_is_not_batched(pieces: Sequence[object], kind: str) -> None:
    joined = gather(OutputLeaf(None, isinstance(pieces[0], Tensor)), pieces, (0.5, 0.5))
    assert joined.kind == kind
    assert joined.value is pieces[0] if kind == "same" else joined.value == list(pieces)


def test_gradients_of_what_is_not_batched() -> None:
    leaf = OutputLeaf(None, True)
    grad = torch.ones(3)
    same = gather(leaf, [torch.ones(3), torch.ones(3)], (0.5, 0.5))
    assert scatter_gradient(leaf, same, grad, (1, 1)) == [grad, None]
    each = gather(leaf, [torch.ones(3), torch.zeros(3)], (0.5, 0.5))
    assert scatter_gradient(leaf, each, [None, grad], (1, 1)) == [None, grad]
    assert scatter_gradient(leaf, each, None, (1, 1)) == [None, None]


def test_gradients_of_inputs() -> None:
    batched, whole = InputLeaf("x", "x", None, 0), InputLeaf("w", "w", None, None)
    grads = [torch.ones(2, 3), None]
    inputs = [torch.zeros(2, 3), torch.zeros(1, 3)]
    joined = gather_input_gradient(batched, grads, inputs)
    assert joined is not None
    assert torch.equal(joined, torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3]))
    added = gather_input_gradient(whole, [torch.ones(3), None, torch.ones(3)], inputs)
    assert added is not None
    assert torch.equal(added, torch.full((3,), 2.0))
    assert gather_input_gradient(whole, [None, None], inputs) is None


def test_sums_are_added_in_ascending_order() -> None:
    pieces = [torch.tensor(x) for x in (1e8, 1.0, -1e8)]
    assert weighted_sum(pieces, (1.0, 1.0, 1.0)).item() == 0.0  # (1e8 + 1) - 1e8 in float32


def test_pieces_of_other_shapes_are_not_joined() -> None:
    leaf = OutputLeaf(0, True)
    pieces = [torch.zeros(2, 2), torch.zeros(1, 1)]
    with pytest.raises(ValueError, match=r"result 3 .* \(2, 2\), \(1, 1\).*keep_output=False"):
        gather(leaf, pieces, [0.5, 0.5], "result 3")


def test_an_empty_piece_is_joined() -> None:
    pieces = [torch.zeros(0, 2), torch.ones(3, 2)]
    assert gather(OutputLeaf(0, True), pieces, [0.0, 1.0]).value.shape == (3, 2)
