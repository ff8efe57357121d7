"""What of the caller's state belongs to a thread, and has to be entered on the threads of the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Autocast:
    """An enabled autocast of a kind of device."""

    device_type: str
    dtype: torch.dtype
    caches: bool


@dataclass(frozen=True)
class CallerState:
    """Grad mode, inference mode and autocast of the thread that called the pipeline."""

    grad: bool
    inference: bool
    autocasts: tuple[Autocast, ...]
    device_types: tuple[str, ...] = ()

    @classmethod
    def now(cls, device_types: Iterable[str], *, grad: bool) -> CallerState:
        """The calling thread's state, as far as devices of these types are concerned.

        Args:
            device_types: ``"cpu"`` and the like.
            grad: whether a graph is to be made, whatever the thread's grad mode is.
        """
        caches = torch.is_autocast_cache_enabled()
        kinds = tuple(sorted(set(device_types)))
        return cls(
            grad,
            torch.is_inference_mode_enabled(),
            tuple(
                Autocast(kind, torch.get_autocast_dtype(kind), caches)
                for kind in kinds
                if torch.is_autocast_enabled(kind)
            ),
            kinds,
        )

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Grad mode and inference mode, on any thread; autocast is left to `autocast`.

        After a failure inside one of the model's own autocast regions the thread is as it was, too.
        """
        kinds = {"cpu", *self.device_types}
        with ExitStack() as stack:
            stack.enter_context(_autocast_put_back(kinds))
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind in kinds:
                if torch.is_autocast_enabled(kind):  # the caller's own thread
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def autocast(self) -> AbstractContextManager[None]:
        """The autocasts, entered anew: their caches begin empty and are emptied at the end."""
        return self._autocast() if self.autocasts else nullcontext()

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        with ExitStack() as stack:
            for one in self.autocasts:
                stack.enter_context(
                    torch.autocast(one.device_type, one.dtype, cache_enabled=one.caches)
                )
            yield
        # Inside the caller's own autocast the cache would live on, and with it this graph.
        torch.clear_autocast_cache()


@contextmanager
def _autocast_put_back(kinds: Iterable[str]) -> Iterator[None]:
    """The thread's autocast as it was before, whatever happens inside."""
    before = [(k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds]
    caches = torch.is_autocast_cache_enabled()
    nesting = _autocast_nesting()
    try:
        yield
    finally:
        if _autocast_nesting() != nesting:
            while torch.autocast_decrement_nesting() > nesting:
                pass
            torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(caches)
        for kind, enabled, dtype in before:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


def _autocast_nesting() -> int:
    """How many autocasts the thread is in."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
