from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fxpipe.ir.signature import CallSignature, InputLeaf, OutputLeaf
from fxpipe.ir.split import Replicate, Split
from fxpipe.runtime.micro_batch import rows_of, scatter, scatter_target
from tests.captures import Structure


def signature(*dims: int | None) -> CallSignature:
    leaves = tuple(InputLeaf(f"in{n}", f"in{n}", None, dim) for n, dim in enumerate(dims))
    return CallSignature(Structure((leaves, {})), leaves, Structure((1,)), (OutputLeaf(0),))


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


def test_targets_are_cut_along_the_inputs_dimension_where_they_have_it() -> None:
    parts = scatter_target([torch.zeros(7, 5), torch.zeros(5)], (3, 2), along=1)
    assert [[leaf.shape for leaf in part] for part in parts] == [[(7, 3), (3,)], [(7, 2), (2,)]]


def test_rules_for_targets() -> None:
    target = {"whole": torch.zeros(5, 2), "last": torch.zeros(3, 5)}
    rules = {"whole": Replicate(), "last": Split(-1)}
    parts = scatter_target(target, (3, 2), rules=lambda layout: [rules[n] for n in layout.names()])
    assert [part["whole"].shape for part in parts] == [(5, 2), (5, 2)]
    assert [part["last"].shape for part in parts] == [(3, 3), (3, 2)]
    with pytest.raises(ValueError, match="cuts 'target' along dimension 3"):
        scatter_target(torch.zeros(5), (3, 2), rules=lambda layout: [Split(3)])


def test_rows_of_a_ready_made_micro_batch() -> None:
    assert rows_of(signature(0, None), [torch.zeros(3, 2), torch.zeros(7)]) == 3
    assert rows_of(signature(None), [torch.zeros(7)]) == 1
