"""Batch normalisation under micro-batches: running statistics of the whole batch, once per step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fxpipe.runtime.shells import Forward


def can_defer(module: nn.Module) -> bool:
    """Whether the module is a batch norm whose statistics can be updated later than its forward."""
    return isinstance(module, _BatchNorm) and type(module).forward is _BatchNorm.forward


class Statistics:
    """What the batch norms of a step have seen: per layer, call and micro-batch, mean and variance."""

    def __init__(self) -> None:
        self._seen: dict[nn.Module, dict[int, dict[int, tuple[int, Tensor, Tensor]]]] = {}
        self._lock = threading.Lock()

    def add(
        self, layer: nn.Module, call: int, micro_batch: int, count: int, mean: Tensor, var: Tensor
    ) -> None:
        """Note the statistics of `count` values per channel (`var` is unbiased)."""
        with self._lock:
            calls = self._seen.setdefault(layer, {})
        calls.setdefault(call, {})[micro_batch] = (count, mean, var)

    def commit(self) -> None:
        """Update the running statistics, as one forward of the whole batch would."""
        with torch.no_grad():
            for layer, calls in self._seen.items():
                for call in sorted(calls):
                    parts = [calls[call][m] for m in sorted(calls[call])]
                    _update(layer, *_union(parts))
        self.forget()

    def forget(self) -> None:
        """Let go of what was noted."""
        self._seen.clear()


def _union(parts: list[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of several sets of values taken together.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979).
    """
    count, mean, var = parts[0]
    squares = var * (count - 1)
    for more, *others in parts[1:]:
        other_mean, other_var = (other.to(mean.device) for other in others)  # of a second copy
        delta = other_mean - mean
        total = count + more
        squares = squares + other_var * (more - 1) + delta * delta * (count * more / total)
        mean = mean + delta * (more / total)
        count = total
    return mean, squares / (count - 1)


def _update(layer: Any, mean: Tensor, var: Tensor) -> None:
    factor = 0.0 if layer.momentum is None else layer.momentum
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
        if layer.momentum is None:
            factor = 1.0 / float(layer.num_batches_tracked)
    layer.running_mean.mul_(1 - factor).add_(mean.to(layer.running_mean), alpha=factor)
    layer.running_var.mul_(1 - factor).add_(var.to(layer.running_var), alpha=factor)


class StageNorms:
    """The deferred batch norms of one stage, and where their statistics go at the moment."""

    def __init__(self) -> None:
        self._statistics: Statistics | None = None
        self._micro_batch = 0
        self._calls: dict[nn.Module, int] = {}

    def begin(self, statistics: Statistics | None, micro_batch: int) -> None:
        """Work on a micro-batch; None: a rerun, whose statistics are known already."""
        self._statistics = statistics
        self._micro_batch = micro_batch
        self._calls.clear()

    def defer(self, user: nn.Module) -> Callable[[nn.Module, Forward], Forward]:
        """What makes the forward of a batch norm's shell."""

        def make(shell: Any, usual: Forward) -> Forward:
            def forward(x: Tensor) -> Tensor:
                if not (shell.training and shell.track_running_stats):
                    normal: Tensor = usual(x)
                    return normal
                shell._check_input_dim(x)
                return self._normalize(user, shell, x)

            return forward

        return make

    def _normalize(self, user: nn.Module, layer: Any, x: Tensor) -> Tensor:
        # With momentum 1 the kernel leaves the statistics it has computed anyway in these two.
        mean = torch.zeros_like(layer.running_mean)
        var = torch.zeros_like(layer.running_var)
        y = F.batch_norm(x, mean, var, layer.weight, layer.bias, True, 1.0, layer.eps)
        if self._statistics is None:
            return y
        call = self._calls.get(user, 0)
        self._calls[user] = call + 1
        count = x.numel() // max(1, x.size(1))
        self._statistics.add(user, call, self._micro_batch, count, mean, var)
        return y
