from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpipe.capture.batch import Batch, find_batch
from fxpipe.capture.signature import flatten
from fxpipe.capture.splits import Splits, split_dim
from fxpipe.ir.split import Replicate, Split


class Takes(nn.Module):
    def forward(
        self, x: Tensor, batch: Any = None, /, *more: Tensor, mask: Any = None, flag: bool = False
    ) -> Tensor:
        return x


class TakesAll(nn.Module):
    def forward(self, **inputs: Tensor) -> Tensor:
        return inputs["x"]


ROWS, OTHER = torch.zeros(4, 7), torch.zeros(7, 4)


def applied(told: dict[str, Any], *args: Any, **kwargs: Any) -> Batch | None:
    leaves, layout = flatten((args, kwargs))
    return Splits(Takes(), told).applied(find_batch(leaves), leaves, layout)


def test_no_rule_changes_nothing() -> None:
    assert applied({}, ROWS, mask=OTHER) == Batch(4, (0, None))
    assert applied({"mask": Replicate()}, ROWS) == Batch(4, (0,))


def test_a_tensor_is_cut_where_it_is_told() -> None:
    assert applied({"mask": Split(1)}, ROWS, mask=OTHER) == Batch(4, (0, 1))
    assert applied({"mask": Split(-1)}, ROWS, mask=OTHER) == Batch(4, (0, 1))
    assert applied({"x": Split()}, ROWS) == Batch(4, (0,))


def test_what_is_told_decides_the_number_of_rows_of_all() -> None:
    """Two tensors of 7 rows are outvoted by one that is told to have 4."""
    found = applied({"x": Split(0)}, ROWS, OTHER, torch.zeros(7), mask=torch.zeros(4))
    assert found == Batch(4, (0, None, None, 0))


def test_sequences_first() -> None:
    found = applied(
        {"x": Split(1)}, torch.zeros(7, 4, 3), torch.zeros(7, 4), mask=torch.zeros(4, 7)
    )
    assert found == Batch(4, (1, 1, 0))


def test_a_state_is_told_and_the_sequences_beside_it_are_cut_along_their_first_dimension() -> None:
    """Two tensors of (layers, rows, width) must not outvote the input that has its rows first."""
    state = torch.zeros(2, 6, 8), torch.zeros(2, 6, 8)
    assert applied({"batch": Split(1)}, torch.zeros(6, 5, 8), state) == Batch(6, (0, 1, 1))
    assert applied({"batch": Split(1)}, torch.zeros(5, 6, 8), state) == Batch(6, (1, 1, 1))


def test_replicated_inputs_have_no_say() -> None:
    assert applied({"mask": Replicate()}, ROWS, mask=torch.zeros(4)) == Batch(4, (0, None))
    tables = {"batch": Replicate(), "mask": Replicate()}
    assert applied(tables, ROWS, OTHER, mask=torch.zeros(7)) == Batch(4, (0, None, None))
    assert applied({"x": Replicate()}, ROWS) is None


def test_a_name_stands_for_all_below_it_and_the_longest_decides() -> None:
    batch = {"ids": ROWS, "pairs": [torch.zeros(4), OTHER], "name": "a"}
    told = {"batch": Replicate(), "batch_pairs": Split(0), "batch_pairs_1": Split(1)}
    assert applied(told, torch.zeros(4), batch) == Batch(4, (0, None, 0, 1, None))


def test_a_name_is_no_prefix_of_another_argument() -> None:
    class Similar(nn.Module):
        def forward(self, x: Tensor, x_mask: Tensor) -> Tensor:
            return x

    _, layout = flatten(((ROWS, torch.zeros(4)), {}))
    assert Splits(Similar(), {"x": Split(0)}).of_call(layout) == (Split(0), None)


def test_arguments_without_names() -> None:
    assert applied({"arg_2": Replicate()}, ROWS, None, torch.zeros(4)) == Batch(4, (0, None, None))
    leaves, layout = flatten(((), {"x": ROWS, "y": torch.zeros(4)}))
    splits = Splits(TakesAll(), {"y": Replicate(), "absent": Split(1)})
    assert splits.applied(find_batch(leaves), leaves, layout) == Batch(4, (0, None))


def test_targets() -> None:
    _, layout = flatten({"y": 1, "z": [2, 3]})
    told = {"target": Split(1), "target_z": Replicate(), "target_z_0": Split(2)}
    assert Splits(Takes(), told).of_target(layout) == (Split(1), Split(2), Replicate())
    _, alone = flatten(torch.zeros(2))
    assert Splits(Takes(), told).of_target(alone) == (Split(1),)


def test_a_rule_for_no_argument() -> None:
    with pytest.raises(ValueError, match="a rule for 'masks', but the inputs are: x, batch, mask"):
        applied({"masks": Split(0)}, ROWS)


def test_a_dimension_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"cuts 'x' along dimension 2, but its shape is \(4, 7\)"):
        applied({"x": Split(2)}, ROWS)
    assert split_dim("text", Split(2), "x") is None


def test_rules_that_disagree() -> None:
    with pytest.raises(ValueError, match=r"have different sizes there \(x: 4, batch: 7\)"):
        applied({"x": Split(0), "batch": Split(0)}, ROWS, OTHER)
