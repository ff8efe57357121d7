"""Tensors in place of a result that could not be computed, tied to what it would depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxpipe.ir.spec import TensorSpec, ValueSpec


def stand_in(
    spec: ValueSpec, place: str, sources: Sequence[torch.Tensor], charge: Callable[[], None]
) -> Any:
    """A value of a recorded shape, its tensors on device `place`.

    Those that autograd followed when recorded depend on every tensor of `sources`. `charge` is called
    once when a gradient comes back.
    """
    pending = [charge]

    def once() -> None:
        if pending:
            pending.pop()()

    def make(part: ValueSpec) -> Any:
        if isinstance(part, TensorSpec):
            return _tensor(part, place, sources, once)
        if isinstance(part, tuple):
            return tuple(make(item) for item in part)
        if isinstance(part, dict):
            return {name: make(item) for name, item in part.items()}
        return part

    return make(spec)


def empty(spec: TensorSpec, place: str) -> torch.Tensor:
    """An uninitialised tensor of that shape and dtype."""
    return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=place)


def _tensor(
    spec: TensorSpec, place: str, sources: Sequence[torch.Tensor], charge: Callable[[], None]
) -> torch.Tensor:
    if not (spec.requires_grad and sources and torch.is_grad_enabled()):
        return empty(spec, place)
    apply: Callable[..., torch.Tensor] = _Dependent.apply
    return apply(spec, place, charge, *sources)


class _Dependent(torch.autograd.Function):
    """Uninitialised memory that claims to be computed from some tensors."""

    @staticmethod
    def forward(
        ctx: Any, spec: TensorSpec, place: str, charge: Callable[[], None], *sources: torch.Tensor
    ) -> torch.Tensor:
        ctx.charge = charge
        ctx.sources = [(source.shape, source.dtype, source.device) for source in sources]
        return empty(spec, place)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.charge()
        made = [torch.empty(s, dtype=t, device=d) for s, t, d in ctx.sources]
        return None, None, None, *made
