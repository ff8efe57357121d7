"""Inputs that share memory, of which the model writes into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def require_apart(
    names: Sequence[str], inputs: Sequence[Sequence[Tensor]], written: Sequence[int]
) -> None:
    """Nothing, if no other input lies in the memory of one that the model writes into.

    Every micro-batch writes into a copy of its own, which the other input would not see.

    Args:
        names: of the placeholders.
        inputs: per micro-batch, a tensor for every placeholder.
        written: positions of the placeholders that the model writes into.

    Raises:
        ValueError: otherwise.
    """
    for at in written:
        for other in range(len(names)):
            if other == at:
                continue
            ones = {id(given[at]): given[at] for given in inputs}.values()
            others = {id(given[other]): given[other] for given in inputs}.values()
            if any(_overlap(one, two) for one in ones for two in others):
                raise ValueError(
                    f"the model writes into {names[at]!r}, and {names[other]!r} is in the same "
                    "memory: micro-batches write into copies, which it would not see. Give the "
                    "pipeline a copy of one of them (tensor.clone())"
                )


def _overlap(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors have a place in memory in common."""
    if one.layout is not torch.strided or two.layout is not torch.strided:
        return False
    storage = one.untyped_storage()
    if storage.data_ptr() != two.untyped_storage().data_ptr() or not one.numel() or not two.numel():
        return False
    if one.element_size() != two.element_size():
        return True  # one is the other's memory looked at as another type
    (first, end), (start, last) = _span(one), _span(two)
    if end <= start or last <= first:
        return False
    low, high = min(first, start), max(end, last)
    marks = torch.zeros(high - low, dtype=torch.bool)
    marks.as_strided(one.shape, one.stride(), first - low).fill_(True)
    return bool(marks.as_strided(two.shape, two.stride(), start - low).any())


def _span(tensor: Tensor) -> tuple[int, int]:
    """The elements of its storage between which a tensor lies."""
    start = int(tensor.storage_offset())
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + int(reach) + 1
