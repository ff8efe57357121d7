"""Forward-mode automatic differentiation, which stages do not do: refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fxpipe.errors import ExecutionError


def refuse_tangents(values: Iterable[Any]) -> None:
    """Raise for inputs or parameters that carry tangents: what the stages return would have none.

    Raises:
        ExecutionError: if there are some.
    """
    if forward_ad._current_level < 0:
        return
    if any(isinstance(value, Tensor) and _has_tangent(value) for value in values):
        raise ExecutionError(
            "forward-mode differentiation (torch.autograd.forward_ad, torch.func.jvp): the stages of a "
            "pipeline carry no tangents. Call the model itself (pipe.module) for it."
        )


def _has_tangent(tensor: Tensor) -> bool:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return True
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
