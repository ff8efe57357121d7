"""Which sizes of a tensor depend on data, where some do: told by a shadow of it with other sizes.

A sequence that is unpacked is as long as the longest row: that size depends on data, those of the batch
and the features do not. The shadow of such a tensor has no data and a larger size there. What is
computed from the tensor is computed from its shadow too; sizes that come out alike are safe to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

_MORE: Final = 5
"""How much larger a size is in the shadow."""


class Shadows:
    """The shadows of one recording's tensors; those without one have sizes that are not known.

    Args:
        is_sized: whether any size of a tensor depends on data.
    """

    def __init__(self, is_sized: Callable[[torch.Tensor], bool]) -> None:
        self._is_sized = is_sized
        self._of: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def begin(self, tensor: torch.Tensor, dims: Iterable[int]) -> None:
        """Give a tensor a shadow: its sizes along `dims` depend on data."""
        shape = list(tensor.shape)
        for dim in dims:
            shape[dim] += _MORE
        self._of[id(tensor)] = (tensor, torch.empty(shape, dtype=tensor.dtype, device="meta"))

    def follow(self, run: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Compute the shadow of a result, if those of its arguments are known and `run` takes them."""
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        unknown = [tensor for tensor in given if id(tensor) not in self._of]
        if len(unknown) == len(given) or any(map(self._is_sized, unknown)):
            return
        with _without_modes():
            some_args, some_kwargs = pytree.tree_map(self._shadow, (args, kwargs))
            try:
                made = run(*some_args, **some_kwargs)
            except Exception:  # then the sizes of the result are not known
                return
        found, shadows = pytree.tree_leaves(result), pytree.tree_leaves(made)
        if len(found) != len(shadows):
            return
        for tensor, shadow in zip(found, shadows, strict=True):
            both = isinstance(tensor, torch.Tensor) and isinstance(shadow, torch.Tensor)
            if both and tensor.dim() == shadow.dim():
                self._of[id(tensor)] = (tensor, shadow)

    def fixed(self, tensor: torch.Tensor) -> frozenset[int]:
        """The dimensions whose sizes do not depend on data."""
        if id(tensor) not in self._of:
            return frozenset()
        shadow = self._of[id(tensor)][1]
        pairs = zip(tensor.shape, shadow.shape, strict=True)
        return frozenset(dim for dim, (one, two) in enumerate(pairs) if one == two)

    def _shadow(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return self._of[id(value)][1] if id(value) in self._of else _empty(value)


def on_meta(module: nn.Module) -> Callable[..., Any]:
    """A module's forward, on parameters and buffers without data."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _emptied(module):
            return module.forward(*args, **kwargs)

    return run


class Sizes(tuple[int, ...]):
    """The shape of a tensor of which some sizes must not be read.

    `fixed`: the dimensions that may be. `refuse`: makes the error for the others.
    """

    fixed: frozenset[int]
    refuse: Callable[[], Exception]

    @classmethod
    def of(
        cls, shape: Iterable[int], fixed: frozenset[int], refuse: Callable[[], Exception]
    ) -> Sizes:
        """The sizes of a shape."""
        made = cls(shape)
        made.fixed, made.refuse = fixed, refuse
        return made

    def __getitem__(self, index: Any) -> Any:
        wanted = range(len(self))[index]
        dims = wanted if isinstance(wanted, range) else (wanted,)
        if not self.fixed.issuperset(dims):
            raise self.refuse()
        found = tuple.__getitem__(self, index)
        return found if isinstance(found, int) else torch.Size(found)

    def __iter__(self) -> Iterator[int]:
        raise self.refuse()

    def __eq__(self, other: object) -> bool:
        raise self.refuse()

    def __hash__(self) -> int:
        raise self.refuse()

    def numel(self) -> int:
        """Like torch.Size's.

        Raises:
            KeepWholeError: always.
        """
        raise self.refuse()


@contextmanager
def _without_modes() -> Iterator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


@contextmanager
def _emptied(module: nn.Module) -> Iterator[None]:
    registries = [r for m in module.modules() for r in (m._parameters, m._buffers)]
    held: list[dict[str, Any]] = [dict(registry) for registry in registries]
    try:
        for registry in registries:
            for name, tensor in registry.items():
                if tensor is not None:
                    registry[name] = _empty(tensor)
        yield
    finally:
        for registry, content in zip(registries, held, strict=True):
            registry.update(content)


def _empty(tensor: torch.Tensor) -> Any:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
