"""Autocast and grad-mode regions: nodes that switch a mode, and which nodes lie between them."""

from __future__ import annotations

import torch
import torch.fx

from fxpipe import ops
from fxpipe.capture.script import Script


class Regions:
    """The regions in progress of one recording."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._contexts: list[tuple[torch.autocast, torch.fx.Node, int]] = []
        self._grad_mode = torch.is_grad_enabled()
        self._grad_region: int | None = None
        self._count = 0

    def _open(self) -> int:
        self._count += 1
        self._script.regions.append(self._count)
        return self._count

    def enter_autocast(self, context: torch.autocast) -> None:
        """An autocast region begins."""
        region = self._open()
        settings = (
            context.device,
            context.fast_dtype,
            context._enabled,
            context._cache_enabled,
        )
        node = self._script.emit("call_function", ops.enter_autocast, settings, value=context)
        self._contexts.append((context, node, region))

    def exit_autocast(self, context: torch.autocast) -> None:
        """An autocast region ends; one that was entered before recording began does not matter."""
        if not self._contexts or self._contexts[-1][0] is not context:
            return
        _, node, region = self._contexts.pop()
        self._script.emit("call_function", ops.exit_autocast, (node,))
        self._script.regions.remove(region)

    def set_grad_enabled(self, enabled: bool) -> None:
        """Switch the grad mode; a region lasts until the mode is what it was at the start."""
        changed = enabled != torch.is_grad_enabled()
        torch._C._set_grad_enabled(enabled)
        if not changed:
            return
        if enabled != self._grad_mode:
            self._grad_region = self._open()
        self._script.emit("call_function", ops.set_grad_enabled, (enabled,))
        if enabled == self._grad_mode and self._grad_region is not None:
            self._script.regions.remove(self._grad_region)
            self._grad_region = None
