from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxpipe.runtime.overlaps import require_apart


def base() -> Tensor:
    return torch.arange(24.0).reshape(4, 6)


APART: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "two tensors": lambda x: (x, x.clone()),
    "rows": lambda x: (x[:2], x[2:]),
    "columns": lambda x: (x[:, :3], x[:, 3:]),
    "every second": lambda x: (x[::2], x[1::2]),
    "none": lambda x: (x, x[:0]),
}
TOGETHER: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "one tensor": lambda x: (x, x),
    "a view": lambda x: (x, x.view(-1)),
    "transposed": lambda x: (x[:, :3], x.t()),
    "some rows": lambda x: (x[:3], x[2:]),
    "expanded": lambda x: (x, x[1:2].expand(4, 6)),
    "as another type": lambda x: (x, x.view(torch.float64)),
}


@pytest.mark.parametrize("name", APART)
def test_what_lies_apart(name: str) -> None:
    one, other = APART[name](base())
    require_apart(["one", "other"], [(one, other)], [0])
    require_apart(["one", "other"], [(one, other)], [0, 1])


@pytest.mark.parametrize("name", TOGETHER)
def test_what_shares_memory(name: str) -> None:
    one, other = TOGETHER[name](base())
    with pytest.raises(ValueError, match="writes into 'one', and 'other' is in the same memory"):
        require_apart(["one", "other"], [(one, other)], [0])
    with pytest.raises(ValueError, match="writes into 'other', and 'one' is in the same memory"):
        require_apart(["one", "other"], [(one, other)], [1])
    require_apart(["one", "other"], [(one, other)], [])


def test_micro_batches_of_one_batch_may_touch_each_other() -> None:
    """Rows of one input and of another, in another micro-batch, are one place in memory."""
    rows = base()
    pieces = [(rows[:2], rows[2:]), (rows[2:], rows[:2])]
    with pytest.raises(ValueError, match="same memory"):
        require_apart(["one", "other"], pieces, [0])


def test_other_layouts_share_nothing() -> None:
    sparse = base().to_sparse()
    require_apart(["one", "other"], [(sparse, sparse)], [0])
