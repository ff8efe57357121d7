"""Which modules of a stage run otherwise than the user wrote them, and how."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fxpipe.errors import ExecutionError
from fxpipe.ir.stage import RandomScope
from fxpipe.runtime.keyed import DROPOUTS, KeyedMode, keyed_dropout
from fxpipe.runtime.reentry import innermost_checkpoint, may_be_in_checkpoint
from fxpipe.runtime.rng import CallCounter, StageKeys, mix, seeded_default
from fxpipe.runtime.shells import COMPILED_CALL, Forward, Swap

MakeForward = Callable[[nn.Module, Forward], Forward]


def random_swaps(
    model: nn.Module, scopes: Sequence[RandomScope], keys: StageKeys, device: torch.device
) -> dict[nn.Module, Swap]:
    """Module → its forward with keyed randomness.

    A compiled block runs whole under one key: its own Python is not there to be swapped, and a
    dispatch mode would make it run uncompiled without a word.
    """
    found: dict[nn.Module, Swap] = {}
    for scope in scopes:
        path = compiled_above(model, scope.path)
        module = model.get_submodule(scope.path if path is None else path)
        if module in found:
            continue
        if path is not None:
            make = _compiled(keys, keys.counter(path, scope.first_call), device)
            in_place = getattr(module, COMPILED_CALL, None) is not None
            found[module] = Swap(make, attribute=COMPILED_CALL if in_place else "forward")
        elif type(module) in DROPOUTS and not has_hooks(module):
            found[module] = Swap(_dropout(keys, keys.counter(scope.path, scope.first_call)))
        else:
            calls = keys.counter(scope.path, scope.first_call)
            found[module] = Swap(call=_under_mode(keys, calls))
    return found


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs hooks, which may draw random numbers too."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def compiled_above(model: nn.Module, path: str) -> str | None:
    """Path of the outermost compiled module on the way to `path`; None if there is none."""
    for prefix in _prefixes(path):
        if is_compiled(model.get_submodule(prefix)):
            return prefix
    return None


def _prefixes(path: str) -> Iterable[str]:
    names = path.split(".") if path else []
    return ("", *(".".join(names[: n + 1]) for n in range(len(names))))


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of the module runs what `torch.compile` has made of it."""
    if getattr(module, COMPILED_CALL, None) is not None:
        return True
    # Whoever has a compiled module has imported this already; it takes seconds to import.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(module, compiler.OptimizedModule)


def _dropout(keys: StageKeys, calls: CallCounter) -> MakeForward:
    def make(shell: nn.Module, usual: Forward) -> Forward:
        def forward(input: Tensor) -> Tensor:
            if not shell.training:
                unchanged: Tensor = usual(input)
                return unchanged
            return keyed_dropout(shell, input, mix(keys.scope(calls.next_scope()), 0))

        return forward

    return make


def _under_mode(keys: StageKeys, calls: CallCounter) -> MakeForward:
    def make(shell: nn.Module, usual: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            scope = keys.scope(calls.next_scope())
            check = _no_checkpoint_inside(calls.path) if keys.keeps_graph else None
            with KeyedMode(scope, check=check):
                return usual(*args, **kwargs)

        return forward

    return make


def _no_checkpoint_inside(path: str) -> Callable[[], None]:
    """What refuses draws in a checkpoint that the module enters itself.

    The backward would run what is inside that checkpoint again, but not the module's forward, and so
    without its keys.
    """
    around = innermost_checkpoint() if may_be_in_checkpoint() else None

    def check() -> None:
        if may_be_in_checkpoint() and innermost_checkpoint() is not around:
            raise ExecutionError(
                f"the forward of the module {path!r} draws random numbers inside a "
                "torch.utils.checkpoint of its own: they cannot be drawn again in the backward. Put "
                "the checkpoint around a module's call, or let fxpipe rerun the forward: "
                "fxpipe.compile(..., recompute='always')"
            )

    return check


def _compiled(keys: StageKeys, calls: CallCounter, device: torch.device) -> MakeForward:
    def make(shell: nn.Module, usual: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            with seeded_default(mix(keys.scope(calls.next_scope()), 0), device):
                return usual(*args, **kwargs)

        return forward

    return make
