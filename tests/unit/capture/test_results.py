from __future__ import annotations

import warnings

import pytest
import torch

from fxpipe.capture.results import output_leaves
from fxpipe.ir.signature import OutputLeaf


def test_batch_dimension_is_the_one_that_differs() -> None:
    first = [torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(()), torch.zeros(8), 5]
    second = [torch.zeros(4, 3), torch.zeros(3, 4), torch.zeros(()), torch.zeros(16), 7]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leaves = list(output_leaves(first, second, (2, 4)))
    assert leaves == [
        OutputLeaf(0, 2),
        OutputLeaf(1, 2),
        OutputLeaf(None, 0),
        OutputLeaf(0, 1),
        OutputLeaf(None),
    ]


def test_rows_by_rows_are_not_joined_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"result 0 has shape \(2, 2\).*belongs to all rows"):
        (leaf,) = output_leaves([torch.zeros(2, 2)], [torch.zeros(4, 4)], (2, 4))
    assert leaf.batch_dim is None


def test_one_recording_shows_no_batch() -> None:
    assert list(output_leaves([torch.zeros(2)], None, (1, 1))) == [OutputLeaf(None)]
