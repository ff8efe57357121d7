from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fxpipe.runtime.reentry import (
    checkpoints_around,
    innermost_checkpoint,
    may_be_in_checkpoint,
)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_is_the_same_when_it_runs_again(use_reentrant: bool) -> None:
    seen: list[tuple[list[object], object | None]] = []

    def function(x: Tensor) -> Tensor:
        seen.append(checkpoints_around())
        return x.sin()

    def outer(x: Tensor) -> Tensor:
        inner: Tensor = checkpoint(function, x, use_reentrant=use_reentrant)
        return inner.cos()

    x = torch.ones(2, requires_grad=True)
    checkpoint(outer, x, use_reentrant=use_reentrant).sum().backward()
    (inside, no_rerun), *again = seen
    assert no_rerun is None
    inner, outermost = inside
    assert inner is not outermost
    # First the outer one runs again, with an inner one of its own, then an inner one.
    assert again[0][1] is outermost
    assert len(again[0][0]) == 1
    assert again[-1][0] == []
    assert again[-1][1] in (inner, again[0][0][0])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_where_a_checkpoint_may_be(use_reentrant: bool) -> None:
    seen: list[Any] = []

    def function(x: Tensor) -> Tensor:
        seen.append((may_be_in_checkpoint(), innermost_checkpoint() is not None))
        return x.sin()

    x = torch.ones(2, requires_grad=True)
    checkpoint(function, x, use_reentrant=use_reentrant)
    function(x)
    assert seen == [(True, True), (False, False)]
