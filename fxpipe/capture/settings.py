"""Settings of torch that change how operators run, and that no node of a graph shows.

Such as the default dtype, the kernels that attention may use, and hooks on what backward keeps.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from fxpipe.capture.sources import Sources
from fxpipe.capture.syntax import call_in_progress

_READ: Final[dict[str, Callable[[], Any]]] = {
    "the default dtype (torch.set_default_dtype)": torch.get_default_dtype,
    "the kernels of attention (torch.nn.attention.sdpa_kernel)": lambda: _attention(),
    "hooks on tensors that are kept for the backward (torch.autograd.graph)": lambda: _hooks(),
    "deterministic algorithms (torch.use_deterministic_algorithms)": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
    "the precision of products (torch.set_float32_matmul_precision)": (
        torch.get_float32_matmul_precision
    ),
    "flags of torch.backends.mkldnn": lambda: torch._C._get_mkldnn_enabled(),
    "flags of torch.backends.cudnn": lambda: torch._C._get_cudnn_enabled(),
}
"""What is set → its value now."""


def _hooks() -> Any:
    """Those for the backward. Where the tensors are kept changes no number, as with checkpoints."""
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
    is_place = all(each.__qualname__.startswith("save_on_cpu.") for each in hooks or ())
    return None if is_place else hooks


def _attention() -> tuple[Any, ...]:
    return (
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_cudnn_sdp_enabled(),
        torch._C._get_sdp_priority_order(),
    )


def _set_attention(value: tuple[Any, ...]) -> None:
    flash, efficient, math, cudnn, order = value
    torch._C._set_sdp_use_flash(flash)
    torch._C._set_sdp_use_mem_efficient(efficient)
    torch._C._set_sdp_use_math(math)
    torch._C._set_sdp_use_cudnn(cudnn)
    torch._C._set_sdp_priority_order(order)


_WRITE: Final[tuple[Callable[[Any], Any] | None, ...]] = (
    torch.set_default_dtype,
    _set_attention,
    None,  # only a context manager sets them: it takes them away itself
    lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    torch.set_float32_matmul_precision,
    lambda value: torch._C._set_mkldnn_enabled(value),
    lambda value: torch._C._set_cudnn_enabled(value),
)
"""How each of them is set."""


class Settings:
    """The settings at the start of a run."""

    def __init__(self) -> None:
        self._names = tuple(_READ)
        self._at_start = self._now()
        self._noticed = False

    @staticmethod
    def _now() -> tuple[Any, ...]:
        return tuple(read() for read in _READ.values())

    def changed(self) -> str | None:
        """The first setting that is another one now, in words."""
        now = self._now()
        if now == self._at_start:
            return None
        self._noticed = True
        pairs = zip(self._names, self._at_start, now, strict=True)
        return next(name for name, before, after in pairs if before != after)

    def put_back(self) -> None:
        """What was found changed, as it was: the run may have been stopped before it did so itself."""
        if not self._noticed:
            return
        for before, after, write in zip(self._at_start, self._now(), _WRITE, strict=True):
            if write is not None and before != after:
                write(before)


def context_around(sources: Sources) -> str:
    """The innermost ``with`` around the user's call in progress; "" if there is no text of one."""
    frame = sources.frame_of(sys._getframe(1))
    found = None if frame is None else call_in_progress(frame)
    if found is None:
        return ""
    text, call = found
    inside = next((node for node in text.outwards(call) if isinstance(node, ast.With)), None)
    if inside is None:
        return ""
    items = ", ".join(ast.unparse(item) for item in inside.items)
    return f"line {inside.lineno}: with {items}:"
