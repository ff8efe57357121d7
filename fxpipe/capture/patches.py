"""What no function mode sees: module calls, hand-written functions, checkpoints, autocast.

The patches dispatch on the recorder of the current thread. They are put in place when the first
recording of the process starts and removed when the last one ends; a thread without a recorder runs
through them as if they were not there.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._functorch import apis, eager_transforms, vmap
from torch.amp.autocast_mode import autocast
from torch.autograd.function import _SingleLevelFunction
from torch.nn.utils import stateless
from torch.utils import checkpoint as checkpoint_module

from fxpipe import ops
from fxpipe.capture import packing, remedies

if TYPE_CHECKING:
    from fxpipe.capture.recorder import Recorder

_local = threading.local()
_lock = threading.Lock()
_users = 0
_undo: list[Callable[[], None]] = []

_module_call = nn.Module.__call__
_module_setattr = nn.Module.__setattr__
_register_buffer = nn.Module.register_buffer
_autocast_enter = autocast.__enter__
_autocast_exit = autocast.__exit__
_checkpoint_generator = checkpoint_module._checkpoint_without_reentrant_generator
_script_function = torch.jit.ScriptFunction.__call__
_inference_enter = torch.inference_mode.__enter__
_functional_call = stateless._functional_call
_backward = torch.autograd.backward
_vmap, _grad_and_value = vmap.vmap_impl, eager_transforms.grad_and_value_impl
_manual_seed, _seed = torch.manual_seed, torch.seed


def active() -> Recorder | None:
    """The recorder of this thread, if it is recording just now."""
    recorder: Recorder | None = getattr(_local, "recorder", None)
    return recorder if recorder is not None and recorder.is_recording else None


@contextmanager
def patched(recorder: Recorder) -> Iterator[None]:
    """Calls of this thread go to `recorder`."""
    with ExitStack() as stack:
        _enter()
        stack.callback(_leave)
        for module in recorder.model.modules():
            if _can_wrap(module):
                forward = _Forward(module)
                forward.install()
                stack.callback(forward.remove)
        _local.recorder = recorder
        stack.callback(setattr, _local, "recorder", None)
        yield


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Activation checkpoints of this thread keep their activations: the same numbers, one pass."""
    _enter()
    _local.plain = True
    try:
        yield
    finally:
        _local.plain = False
        _leave()


def _enter() -> None:
    global _users
    with _lock:
        if _users == 0:
            try:
                _install()
            except BaseException:
                _uninstall()
                raise
        _users += 1


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _uninstall()


def _uninstall() -> None:
    while _undo:
        _undo.pop()()


def _install() -> None:
    _replace(nn.Module, "__call__", _call)
    _replace(nn.Module, "__setattr__", _setattr)
    _replace(nn.Module, "register_buffer", _register)
    _replace(autocast, "__enter__", _enter_autocast)
    _replace(autocast, "__exit__", _exit_autocast)
    _replace(torch.inference_mode, "__enter__", _enter_inference)
    _replace(checkpoint_module, "_checkpoint_without_reentrant_generator", _no_checkpoint)
    _replace(_SingleLevelFunction, "apply", classmethod(_apply))
    _replace(torch.jit.ScriptFunction, "__call__", _script_call)
    _replace(stateless, "_functional_call", _call_swapped)
    _replace(apis, "vmap_impl", _map_whole)
    _replace(eager_transforms, "grad_and_value_impl", _differentiate_whole)
    _replace(torch.autograd, "backward", _accumulate)
    _replace(torch, "manual_seed", _set_seed)
    _replace(torch, "seed", _draw_seed)
    _undo.append(packing.install())


def _replace(owner: Any, name: str, value: Any) -> None:
    had = name in vars(owner)
    old = vars(owner).get(name)
    setattr(owner, name, value)
    _undo.append(lambda: setattr(owner, name, old) if had else delattr(owner, name))


# -- modules ---------------------------------------------------------------------------------------


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    recorder: Recorder | None = getattr(_local, "recorder", None)
    if recorder is None:
        return _module_call(module, *args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        return _module_call(module, *args, **kwargs)

    if recorder.is_recording:
        return recorder.modules.call(module, run, args, kwargs, "call")
    result = run(*args, **kwargs)
    recorder.leaf_calls.hide(result)
    return result


class _Forward:
    """Stands for ``module.forward`` in the instance: some code calls it without the module's call."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._original = module.forward
        with suppress(ValueError, TypeError):  # a built-in function may have none
            self.__signature__ = inspect.signature(module.forward)
        self.__name__ = "forward"
        self.__doc__ = module.forward.__doc__

    def install(self) -> None:
        self._module.__dict__["forward"] = self

    def remove(self) -> None:
        if self._module.__dict__.get("forward") is self:
            del self._module.__dict__["forward"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = active()
        if recorder is None or recorder.modules.begins_forward(self._module):
            return self._original(*args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            recorder.modules.begins_forward(self._module)
            return self._original(*args, **kwargs)

        return recorder.modules.call(self._module, run, args, kwargs, "forward")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module has a forward of its own, which nobody watches."""
        return copy.deepcopy(self._original, memo)


def _can_wrap(module: nn.Module) -> bool:
    if "forward" in module.__dict__ or isinstance(module, torch.jit.ScriptModule):
        return False
    return callable(getattr(module, "forward", None))


def _setattr(module: nn.Module, name: str, value: Any) -> None:
    recorder: Recorder | None = getattr(_local, "recorder", None)
    if recorder is not None and isinstance(value, torch.Tensor):
        if recorder.is_recording:
            recorder.mutations.store(module, name, value)
        else:
            recorder.leaf_calls.hide(value)
        with _sets():  # for a buffer it calls register_buffer
            _module_setattr(module, name, value)
        return
    if name == "training" and recorder is not None and recorder.is_recording:
        recorder.mutations.switch(module, value)
    _module_setattr(module, name, value)


@contextmanager
def _sets() -> Iterator[None]:
    before = getattr(_local, "sets", False)
    _local.sets = True
    try:
        yield
    finally:
        _local.sets = before


def _register(
    module: nn.Module, name: str, tensor: torch.Tensor | None, persistent: bool = True
) -> None:
    recorder: Recorder | None = getattr(_local, "recorder", None)
    if recorder is not None and tensor is not None and not getattr(_local, "sets", False):
        if recorder.is_recording:
            recorder.mutations.register(module, name, tensor, persistent)
        else:
            recorder.leaf_calls.hide(tensor)
    _register_buffer(module, name, tensor, persistent)


# -- functions -------------------------------------------------------------------------------------


def _apply(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
    run = super(_SingleLevelFunction, cls).apply
    recorder = active()
    if cls is checkpoint_module.CheckpointFunction and _ignores_checkpoints():
        function, _, *rest = args
        return function(*rest)
    if recorder is None:
        return run(*args, **kwargs)
    return recorder.opaque(ops.apply_function, cls, run, args, kwargs)


def _script_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    recorder = active()
    if recorder is None:
        return _script_function(function, *args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        return _script_function(function, *args, **kwargs)

    return recorder.opaque(ops.call, function, run, args, kwargs)


def _call_swapped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    recorder = active()
    if recorder is not None:
        recorder.mutations.swapped(module)
    return _functional_call(module, *args, **kwargs)


def _accumulate(*args: Any, **kwargs: Any) -> None:
    recorder = active()
    if recorder is not None:
        raise recorder.accumulates(_backward)
    _backward(*args, **kwargs)


def _map_whole(function: Any, *args: Any, **kwargs: Any) -> Any:
    return _transform(_vmap, function, args, kwargs)


def _differentiate_whole(function: Any, *args: Any, **kwargs: Any) -> Any:
    return _transform(_grad_and_value, function, args, kwargs)


def _transform(implementation: Any, function: Any, args: Any, kwargs: Any) -> Any:
    recorder = active()
    if recorder is None:
        return implementation(function, *args, **kwargs)
    return recorder.transform(implementation, function, args, kwargs)


def _set_seed(seed: int) -> torch.Generator:
    recorder = active()
    if recorder is not None:
        reason = "it seeds torch's random generator, which no graph node shows"
        raise recorder.keep_whole(reason, _manual_seed, remedy=remedies.SEED)
    return _manual_seed(seed)


def _draw_seed() -> int:
    recorder: Recorder | None = getattr(_local, "recorder", None)
    if recorder is not None:  # in a leaf as well
        reason = "it seeds torch's random generator by chance, so that no two runs are alike"
        raise recorder.refuse(reason, _seed, remedy=remedies.SEED)
    return _seed()


def _no_checkpoint(*args: Any, **kwargs: Any) -> Iterator[None]:
    if _ignores_checkpoints():
        yield
    else:
        yield from _checkpoint_generator(*args, **kwargs)


def _ignores_checkpoints() -> bool:
    return active() is not None or getattr(_local, "plain", False)


# -- modes -----------------------------------------------------------------------------------------


def _enter_autocast(context: autocast) -> Any:
    result = _autocast_enter(context)  # type: ignore[no-untyped-call]
    recorder = active()
    if recorder is not None:
        with recorder.paused():
            recorder.regions.enter_autocast(context)
    return result


def _exit_autocast(context: autocast, *error: Any) -> Any:
    recorder = active()
    if recorder is not None:
        with recorder.paused():
            recorder.regions.exit_autocast(context)
    return _autocast_exit(context, *error)


def _enter_inference(context: torch.inference_mode) -> None:
    recorder = active()
    if recorder is not None:
        reason = "it switches to inference mode"
        raise recorder.keep_whole(reason, torch.inference_mode, remedy=remedies.INFERENCE)
    _inference_enter(context)
