from __future__ import annotations

import pytest
import torch

from fxpipe.errors import ExecutionError
from fxpipe.runtime.for_now import saved_for_now


def test_a_graph_is_differentiated_inside_and_refused_after() -> None:
    x = torch.ones(3, requires_grad=True)
    with saved_for_now():
        (grad,) = torch.autograd.grad((x * x).sum(), x)
        kept = x.sin().sum()
    assert torch.equal(grad, torch.full((3,), 2.0))
    with pytest.raises(ExecutionError, match="recompute='never'"):
        kept.backward()
