from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.capture.batch import Batch, find_batch
from fxpipe.capture.ragged import ragged_lists, refuse_ragged, without_ragged
from fxpipe.capture.signature import flatten
from fxpipe.capture.splits import Splits
from fxpipe.ir.split import Replicate


class Pads(nn.Module):
    """Takes sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, xs: list[Tensor]) -> Tensor:
        return self.b(self.a(nn.utils.rnn.pad_sequence(xs, batch_first=True))[0])


def sequences(*lengths: int) -> list[Tensor]:
    return [torch.randn(n, 4) for n in lengths]


def guessed(*args: Any, told: dict[str, Any] | None = None) -> Batch | None:
    leaves, layout = flatten((args, {}))
    splits = Splits(Pads(), told or {})
    return without_ragged(find_batch(leaves), leaves, layout, splits)


def test_a_list_of_several_lengths_has_no_rows() -> None:
    assert guessed(sequences(3, 4, 3)) is None
    assert guessed(torch.randn(4, 2), sequences(3, 4, 4)) == Batch(4, (0, None, None, None))


def test_other_lists_are_as_they_were_guessed() -> None:
    assert guessed(sequences(4, 4)) == Batch(4, (0, 0))
    assert guessed([torch.randn(4, 2), torch.randn(9, 3)]) == Batch(4, (0, None))
    assert guessed((torch.randn(4, 2), torch.randn(9, 2))) == Batch(4, (0, None))
    assert guessed([torch.randn(4, 2), 5]) == Batch(4, (0, None))


def test_a_list_with_a_rule_is_left_alone() -> None:
    told = {"xs_1": Replicate()}
    assert guessed(sequences(3, 4, 3), told=told) == Batch(3, (0, None, 0))


def test_the_refusal_names_the_tensors_and_what_to_do() -> None:
    leaves, layout = flatten(((sequences(3, 5),), {}))
    batch = find_batch(leaves)
    assert batch is not None
    (held,) = ragged_lists(batch, leaves, layout)
    with pytest.raises(ValueError, match=r"xs_0: \(3, 4\), xs_1: \(5, 4\).*\n.*micro_batches="):
        refuse_ragged(leaves, ["xs_0", "xs_1"], held)


@pytest.mark.parametrize("first", [(3, 4, 3), (4, 4, 4)])
def test_a_batch_of_them_is_not_cut_along_time(first: tuple[int, ...]) -> None:
    with fxpipe.compile(Pads(), ["cpu"] * 2, 2, costs="estimate") as pipe:
        if len(set(first)) == 1:
            pipe(sequences(*first))
        with pytest.raises(ValueError, match="may be sequences of one batch"):
            pipe(sequences(3, 4, 3))


def test_micro_batches_of_them_run() -> None:
    model = Pads()
    calls = [((sequences(*lengths),), {}) for lengths in ((3, 4, 3), (3, 5, 2), (2, 2, 2))]
    with fxpipe.compile(model, ["cpu"] * 2, 2, costs="estimate", threads_per_rank=1) as pipe:
        output = pipe.step(micro_batches=calls, loss_fn=lambda y, _: y.square().mean()).output
    for (args, _), found in zip(calls, output, strict=True):
        assert torch.equal(found, model(*args))
