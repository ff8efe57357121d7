"""What calls do besides returning a value: random draws, and writes into storages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from fxpipe.capture.containers import tensors
from fxpipe.ops import draws_random
from fxpipe.originals import storage_key as storage_key

_STATISTICS: Final = {
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::_batch_norm_impl_index",
}
"""Operators that update running statistics although their schema does not say so."""


@dataclass
class Effects:
    """What one call did.

    Attributes:
        draws: how many operators took numbers from a default generator.
        writes: keys of the storages written into (see `storage_key`).
        replaces: names of the buffers that are another tensor now.
    """

    draws: int = 0
    writes: set[int] = field(default_factory=set)
    replaces: set[str] = field(default_factory=set)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every ATen operator while a model is recorded, and notes effects.

    Args:
        unseen: called with an operator and its arguments that no function mode saw being called: it
            comes from compiled code. Gives the context to run it in; None if the operator was seen.
        about_to_write: called with the tensors that an operator is going to write into.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        unseen: Callable[[Any, Any], AbstractContextManager[None] | None],
        about_to_write: Callable[[Iterator[torch.Tensor]], None] = lambda tensors: None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unseen = unseen
        self._about_to_write = about_to_write
        self._current = Effects()
        self._written: dict[Any, tuple[tuple[int, str], ...]] = {}

    @contextmanager
    def measure(self) -> Iterator[Effects]:
        """The effects of what runs inside (not those of an inner `measure`)."""
        before, self._current = self._current, Effects()
        try:
            yield self._current
        finally:
            self._current = before

    def forget(self) -> None:
        """Drop what the innermost `measure` has seen so far: it is run again."""
        self._current.draws = 0
        self._current.writes.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, args, kwargs)
        written = [
            args[position] if position < len(args) else kwargs.get(name)
            for position, name in self._writable(func)
        ]
        for value in written:
            self._about_to_write(tensors(value))
        context = self._unseen(func, (args, kwargs))
        if context is not None:
            with context:
                return func(*args, **kwargs)
        if draws_random(func, args, kwargs):
            self._current.draws += 1
        result = func(*args, **kwargs)
        for value in written:
            self._note(value)
        if func._schema.name in _STATISTICS:
            self._note_statistics(func, args, kwargs)
        return result

    def _higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator that takes functions: what these do is not seen, but for their draws."""
        context = self._unseen(func, (args, kwargs))
        before = torch.get_rng_state()
        with context or nullcontext():
            result = func(*args, **kwargs)
        if not torch.equal(before, torch.get_rng_state()):
            self._current.draws += 1
        return result

    def replaces(self, tensor: torch.Tensor) -> None:
        """Note that a tensor is about to get other memory (``tensor.data = …``): a write, too."""
        self._about_to_write(tensors(tensor))
        self._note(tensor)

    def _note(self, value: Any) -> None:
        self._current.writes.update(storage_key(tensor) for tensor in tensors(value))

    def _note_statistics(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
        if given.get("training", given.get("train", False)):
            self._note([given.get("running_mean"), given.get("running_var")])

    def _writable(self, func: Any) -> tuple[tuple[int, str], ...]:
        if func not in self._written:
            self._written[func] = tuple(
                (position, argument.name)
                for position, argument in enumerate(func._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            )
        return self._written[func]
