from __future__ import annotations

import pytest
import torch

from fxpipe.capture.copies import copied


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_copy_is_a_leaf_with_its_own_memory(requires_grad: bool) -> None:
    tensor = torch.ones(2).requires_grad_(requires_grad)
    made = copied(tensor)
    with torch.no_grad():
        made.add_(1)
    assert tensor.tolist() == [1, 1]
    assert made.is_leaf
    assert made.requires_grad is requires_grad


def test_other_values_are_not_copied() -> None:
    value = [1]
    assert copied(value) is value
