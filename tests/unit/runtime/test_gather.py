from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fxpipe.ir.signature import InputLeaf, OutputLeaf
from fxpipe.runtime.gather import (
    gather,
    gather_input_gradient,
    scatter_gradient,
    weighted_loss,
    weighted_sum,
)


def test_rows_are_joined_and_their_gradient_cut_again() -> None:
    leaf = OutputLeaf(1)
    pieces = [torch.randn(3, 2), torch.randn(3, 1)]
    joined = gather(leaf, pieces, (2 / 3, 1 / 3))
    assert torch.equal(joined.value, torch.cat(pieces, 1))
    cut = scatter_gradient(leaf, joined, joined.value, (2 / 3, 1 / 3))
    assert all(map(torch.equal, cut, pieces))


def test_more_rows_than_the_batch_has() -> None:
    """An output with two rows for each row of the batch is cut by its own pieces."""
    leaf = OutputLeaf(0)
    pieces = [torch.randn(4, 3), torch.randn(2, 3)]
    joined = gather(leaf, pieces, (2 / 3, 1 / 3))
    cut = scatter_gradient(leaf, joined, joined.value, (2 / 3, 1 / 3))
    assert [len(piece) for piece in cut if piece is not None] == [4, 2]


def test_one_row_without_its_dimension_is_joined_as_a_row() -> None:
    leaf = OutputLeaf(0, 2)
    pieces = [torch.randn(2, 3), torch.randn(3), torch.randn(3)]
    weights = (0.5, 0.25, 0.25)
    joined = gather(leaf, pieces, weights)
    assert torch.equal(joined.value, torch.stack([*pieces[0], *pieces[1:]]))
    cut = scatter_gradient(leaf, joined, joined.value, weights)
    assert all(map(torch.equal, cut, pieces))


def test_rows_that_all_lack_their_dimension_are_joined() -> None:
    leaf = OutputLeaf(0, 1)
    pieces = [torch.tensor(1.0), torch.tensor(2.0)]
    joined = gather(leaf, pieces, (0.5, 0.5))
    assert joined.value.tolist() == [1, 2]
    assert [piece.shape for piece in scatter_gradient(leaf, joined, joined.value, (0.5, 0.5))] == [
        (),
        (),
    ]


def test_pieces_that_lack_more_than_that_are_a_list() -> None:
    pieces = [torch.randn(2, 3), torch.tensor(1.0)]
    assert gather(OutputLeaf(0, 2), pieces, (0.5, 0.5)).kind == "each"


def test_scalars_are_averaged_by_rows() -> None:
    leaf = OutputLeaf(None)
    weights = (3 / 5, 2 / 5)
    pieces = [torch.tensor(1.0, requires_grad=True), torch.tensor(6.0, requires_grad=True)]
    joined = gather(leaf, pieces, weights)
    assert joined.value.item() == pytest.approx(3.0)
    grads = torch.autograd.grad(joined.value, pieces, torch.tensor(5.0))
    cut = scatter_gradient(leaf, joined, torch.tensor(5.0), weights)
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
    joined = gather(OutputLeaf(None), pieces, (0.5, 0.5))
    assert joined.kind == kind
    assert joined.value is pieces[0] if kind == "same" else joined.value == list(pieces)


def test_gradients_of_what_is_not_batched() -> None:
    leaf = OutputLeaf(None)
    grad = torch.ones(3)
    same = gather(leaf, [torch.ones(3), torch.ones(3)], (0.5, 0.5))
    assert scatter_gradient(leaf, same, grad, (0.5, 0.5)) == [grad, None]
    each = gather(leaf, [torch.ones(3), torch.zeros(3)], (0.5, 0.5))
    assert scatter_gradient(leaf, each, [None, grad], (0.5, 0.5)) == [None, grad]
    assert scatter_gradient(leaf, each, None, (0.5, 0.5)) == [None, None]


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


def test_pieces_of_weight_0_are_not_looked_at() -> None:
    pieces = [torch.tensor(float("nan")), torch.tensor(2.0), torch.tensor(3.0)]
    assert weighted_sum(pieces, (0.0, 0.5, 1.0)).item() == 4.0
    assert weighted_loss([None, *pieces[1:]], (0.0, 0.5, 1.0)).item() == 4.0
    assert weighted_loss([None, None], (0.5, 0.5)) is None


def test_one_micro_batch_is_weighted_too() -> None:
    loss = gather(OutputLeaf(None), [torch.tensor(3.0)], (0.5,))
    assert (loss.kind, loss.value.item()) == ("mean", 1.5)
    assert gather(OutputLeaf(None), [torch.tensor(3)], (0.5,)).kind == "same"


@pytest.mark.parametrize("piece", [torch.ones(3), torch.tensor(True), 4])
def test_what_follows_from_the_rows_is_told_for_each_micro_batch_even_if_equal(
    piece: object,
) -> None:
    leaf = OutputLeaf(None, isinstance(piece, Tensor))
    assert gather(leaf, [piece, piece], (0.5, 0.5), varies=True).value == [piece, piece]


def test_pieces_of_other_shapes_are_not_joined() -> None:
    pieces = [torch.zeros(2, 2), torch.zeros(1, 1)]
    joined = gather(OutputLeaf(0), pieces, [0.5, 0.5])
    assert (joined.kind, joined.value) == ("each", pieces)


def test_an_empty_piece_is_joined() -> None:
    pieces = [torch.zeros(0, 2), torch.ones(3, 2)]
    assert gather(OutputLeaf(0), pieces, [0.0, 1.0]).value.shape == (3, 2)
