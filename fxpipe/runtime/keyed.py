"""Random operators given a keyed generator: dropout directly, everything else by a dispatch mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from fxpipe.ops import draws_random
from fxpipe.runtime.rng import generator, mix, seeded_default

_Dispatch = Callable[..., Any]


class KeyedMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every operator that draws random numbers is given a generator with the next key.

    A mode belongs to its thread, and an inner one comes first: what it has given a generator, the
    outer one leaves alone.
    """

    supports_higher_order_operators = True
    """Operators that take functions run as they are: what draws inside of them has no key."""

    def __init__(
        self, scope: int, first_draw: int = 0, check: Callable[[], None] | None = None
    ) -> None:
        """A mode for one scope.

        Args:
            scope: key of the scope.
            first_draw: ordinal of the first draw inside.
            check: called before every draw; it raises if the draw could not be repeated.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._scope = scope
        self._draw = first_draw
        self._check = check

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The operator's result, with a keyed generator if it draws."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        if not may_draw(func) or not draws_random(func, args, kwargs):
            return func(*args, **kwargs)
        if self._check is not None:
            self._check()
        key = mix(self._scope, self._draw)
        self._draw += 1
        device = _device_of(args, kwargs)
        keyed = with_generator(func)
        if keyed is None:
            with seeded_default(key, device):
                return func(*args, **kwargs)
        return keyed(*args, **{**kwargs, "generator": generator(key, device)})


@cache
def may_draw(operator: Any) -> bool:
    """Whether an operator ever draws random numbers."""
    return torch.Tag.nondeterministic_seeded in operator.tags


@cache
def with_generator(operator: Any) -> _Dispatch | None:
    """The overload of an operator that takes ``generator=``; None if there is none."""
    if _takes_generator(operator):
        own: _Dispatch = operator
        return own
    packet, name = operator.overloadpacket, operator._overloadname
    tries = ("generator",) if name == "default" else (f"{name}_generator", f"generator_{name}")
    for candidate in tries:
        if candidate in packet.overloads():
            overload: _Dispatch = getattr(packet, candidate)
            if _takes_generator(overload):
                return overload
    return None


def _takes_generator(operator: Any) -> bool:
    return any(argument.name == "generator" for argument in operator._schema.arguments)


def _device_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """The device an operator works on: that of its first tensor, or the one it is told."""
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Tensor):
                return item.device
    told = kwargs.get("device")
    return torch.device("cpu") if told is None else torch.device(told)


# ---- dropout layers ------------------------------------------------------------------------------

_Noise = Callable[[Tensor], Tensor]


def _elements(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.preserve_format)


def _channels(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:2], *(1,) * (x.dim() - 2)))


def _channels_of_one(batched_dim: int) -> _Noise:
    """Noise per channel for a layer that takes a sample without batch dimension too."""

    def noise(x: Tensor) -> Tensor:
        if x.dim() == batched_dim:
            return _channels(x)
        return x.new_empty((x.shape[0], *(1,) * (x.dim() - 1)))

    return noise


DROPOUTS: Final[Mapping[type[nn.Module], _Noise]] = {
    nn.Dropout: _elements,
    nn.Dropout1d: _channels_of_one(3),
    nn.Dropout2d: _channels,
    nn.Dropout3d: _channels_of_one(5),
}
"""Layer → the empty tensor that its noise is drawn into."""


def keyed_dropout(layer: Any, x: Tensor, key: int) -> Tensor:
    """What a dropout layer in training gives if the default generator is seeded with `key`.

    Args:
        layer: a `DROPOUTS` layer.
        x: its input.
        key: of the draw.
    """
    if x.device.type != "cpu":  # fused kernels, which keep less for backward
        with seeded_default(key, x.device):
            return type(layer).forward(layer, x)  # type: ignore[no-any-return]
    p = layer.p
    if p == 0.0 or x.numel() == 0:
        return x
    if p == 1.0:
        return x.mul_(torch.zeros_like(x)) if layer.inplace else x * torch.zeros_like(x)
    noise = DROPOUTS[type(layer)](x).bernoulli_(1 - p, generator=generator(key, x.device))
    noise.div_(1 - p)
    return x.mul_(noise) if layer.inplace else x * noise
