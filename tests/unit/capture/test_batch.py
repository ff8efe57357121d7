from __future__ import annotations

import torch

from fxpipe.capture.batch import Batch, find_batch, resized


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

    assert [sizes(n) for n in (1, 2, 3, 4, 8)] == [(2, 4), (2, 4), (3, 6), (4, 2), (8, 4)]


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
