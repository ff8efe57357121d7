"""Masks of FlexAttention: tensors with rows, and a function that is asked for a row by its number."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from torch.utils._pytree import tree_leaves

_MODULE: Final = "torch.nn.attention.flex_attention"


def refuse_masks(arguments: Any, cut: Sequence[Any]) -> None:
    """Refuse a block mask that is about to be cut.

        mask = create_block_mask(lambda b, h, q, k: document[b, q] == document[b, k], rows, …)

    The first row of every micro-batch is row 0 to that function, which would look at the wrong rows.

    Args:
        arguments: of the call.
        cut: its tensors that are cut.

    Raises:
        ValueError: if there is one.
    """
    tensors = {id(tensor) for tensor in cut}
    for mask in _masks(arguments):
        if id(mask.kv_num_blocks) in tensors:
            raise ValueError(
                "a BlockMask with rows of its own cannot be cut into micro-batches: in each, its "
                "mask_mod is asked for rows from 0 on, and would look at the wrong ones\n"
                "  What to do: make the mask inside the model, from an input that is cut"
            )


def _masks(arguments: Any) -> Iterator[Any]:
    module = sys.modules.get(_MODULE)
    if module is None:  # then there is no mask
        return
    kind = module.BlockMask
    for leaf in tree_leaves(arguments, is_leaf=lambda value: isinstance(value, kind)):
        if isinstance(leaf, kind):
            yield leaf
