"""What of the caller's state belongs to a thread, and has to be entered on the threads of the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from fxpipe.capture.restore import Modes
from fxpipe.runtime.casts import alone, apart


@dataclass(frozen=True)
class Autocast:
    """An enabled autocast of a kind of device."""

    device_type: str
    dtype: torch.dtype
    caches: bool


@dataclass(frozen=True)
class CallerState:
    """What the thread that called the pipeline is in.

    Attributes:
        grad: grad mode.
        inference: inference mode.
        autocasts: where autocast is on.
        device_type: of the default device, if the caller has chosen one; new tensors are then made
            on the current device of that type, which is the stage's.
    """

    grad: bool
    inference: bool
    autocasts: tuple[Autocast, ...]
    device_type: str | None = None

    @classmethod
    def now(cls, device_types: Iterable[str], *, grad: bool) -> CallerState:
        """The calling thread's state, as far as devices of these types are concerned.

        Args:
            device_types: ``"cpu"`` and the like.
            grad: whether a graph is to be made, whatever the thread's grad mode is.
        """
        caches = torch.is_autocast_cache_enabled()
        default = torch.get_default_device().type
        return cls(
            grad,
            torch.is_inference_mode_enabled(),
            tuple(
                Autocast(kind, torch.get_autocast_dtype(kind), caches)
                for kind in sorted(set(device_types))
                if torch.is_autocast_enabled(kind)
            ),
            None if default == "cpu" else default,
        )

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Grad mode, inference mode, default device, on any thread; autocast is left to `autocast`.

        After a failure inside one of the model's own autocast regions the thread is as it was, too.
        """
        with ExitStack() as stack:
            stack.enter_context(Modes())
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            if self.device_type is not None:
                stack.enter_context(torch.device(self.device_type))
            for kind in ("cpu", *(one.device_type for one in self.autocasts)):
                if torch.is_autocast_enabled(kind):  # the caller's own thread
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def autocast(self, *, reuses: bool) -> AbstractContextManager[None]:
        """The autocasts, entered anew.

        Args:
            reuses: whether a weight may be used more than once inside: then its casts are kept, as
                the caller's autocast keeps them (see `fxpipe.runtime.casts`).
        """
        return self._autocast(reuses) if self.autocasts else nullcontext()

    @contextmanager
    def _autocast(self, reuses: bool) -> Iterator[None]:
        keeps = reuses and any(one.caches for one in self.autocasts)
        with alone() if keeps else apart(), ExitStack() as stack:
            for one in self.autocasts:
                stack.enter_context(
                    torch.autocast(one.device_type, one.dtype, cache_enabled=keeps and one.caches)
                )
            yield
