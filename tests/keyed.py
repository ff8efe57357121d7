"""Eager execution that draws the random numbers a pipeline draws.

A draw's key is (seed, step, micro-batch, "path#call" of the innermost module call around it, ordinal in
that call); see docs/exactness.md. Here the default generator is seeded with it just before the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fxpipe.runtime.rng import mix, scope_hash, step_key

DRAWS: Final = ("aten.bernoulli_", "aten.randn_like", "aten.dropout.", "aten.dropout_.")
"""In inference mode a dropout comes whole, else as the draw inside it."""


class KeyedTwin:
    """A model whose draws are keyed, one turn (a step or a call) after another.

    Attributes:
        model: the model; it gets hooks that do not change what it computes.
        draws: whether it may draw at all: in inference mode a dispatch mode changes which kernels run.
    """

    def __init__(self, model: nn.Module, draws: bool = True) -> None:
        self.model = model
        self.draws = draws
        self._calls: dict[str, int] = {}
        self._scopes: list[str] = []
        self._draws: dict[str, int] = {}
        for path, module in model.named_modules():
            module.register_forward_pre_hook(self._entering(path), prepend=True)
            module.register_forward_hook(self._leaving, always_call=True)

    def turn(
        self,
        seed: int | None,
        step: int,
        inner: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Callable[[], AbstractContextManager[Any]]:
        """What to enter for each micro-batch of a turn, in ascending order.

        Args:
            seed: of the pipeline; None: the first draw takes one from the caller's generator.
            step: the number of steps before.
            inner: entered too.
        """
        count, base = 0, None if seed is None else step_key(seed, step)

        def key() -> int:
            nonlocal base
            if base is None:
                base = step_key(int(torch.randint(0, 2**63 - 1, (), dtype=torch.int64)), 0)
            return base

        @contextmanager
        def around() -> Iterator[None]:
            nonlocal count
            micro_batch, count = count, count + 1
            self._calls.clear()
            self._draws.clear()
            mode = _Keyed(lambda: self._next(mix(key(), micro_batch)))
            may_draw = self.draws and any(module.training for module in self.model.modules())
            with inner(), mode if may_draw else nullcontext():
                yield

        return around

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            call = self._calls.get(path, 0)
            self._calls[path] = call + 1
            self._scopes.append(f"{path}#{call}")

        return enter

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        self._scopes.pop()

    def _next(self, base: int) -> int:
        scope = self._scopes[-1]
        draw = self._draws.get(scope, 0)
        self._draws[scope] = draw + 1
        return mix(mix(base, scope_hash(scope)), draw)


class _Keyed(TorchDispatchMode):
    def __init__(self, key: Callable[[], int]) -> None:
        super().__init__()
        self._key = key

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_off = "dropout" in str(func) and not args[2]
        if not str(func).startswith(DRAWS) or is_off:
            return func(*args, **(kwargs or {}))
        key = self._key()
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(key)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch.set_rng_state(before)
