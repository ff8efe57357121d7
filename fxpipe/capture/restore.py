"""What a run of a model changes besides its result, put back: as if it had never run."""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, TypeGuard

import numpy as np
import torch
from torch import nn

from fxpipe.capture.alone import alone
from fxpipe.generators import PythonGenerators
from fxpipe.gradients import Gradients
from fxpipe.held import Held, numbers_that_changed, refill
from fxpipe.originals import Originals

_REGISTRIES: Final = frozenset({"_parameters", "_buffers", "_modules"})
_ITERATORS: Final[tuple[type[Any], ...]] = (
    itertools.count,
    itertools.cycle,
    type(iter([])),
    type(iter(())),
)
"""Those that can be copied."""
_SCALARS: Final = (bool, int, float, str, type(None))


class Modes:
    """Grad mode and autocast, put back at the end: also regions that were entered and not left."""

    def __enter__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._devices = _autocast_devices()
        self._states = [
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in self._devices
        ]
        self._cache = torch.is_autocast_cache_enabled()
        self._nesting = _autocast_nesting()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        torch._C._set_grad_enabled(self._grad)
        for device, (enabled, dtype) in zip(self._devices, self._states, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._cache)
        while _autocast_nesting() > self._nesting:  # regions that were entered and not left
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()


def _autocast_nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _autocast_devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


class Randomness:
    """The default generators of torch, ``random`` and NumPy, put back at the end."""

    def __enter__(self) -> Randomness:
        self._torch = torch.get_rng_state()
        self._cuda = _cuda_states()
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        np.random.set_state(self._numpy)


def random_states() -> tuple[Any, ...]:
    """The states of all default generators, one after another."""
    return (torch.get_rng_state(), *_cuda_states(), str(PythonGenerators().now()))


def _cuda_states() -> list[torch.Tensor]:
    used: Callable[[], bool] = torch.cuda.is_initialized
    return torch.cuda.get_rng_state_all() if used() else []


class ModelState:
    """Buffers, attributes, gradients, hooks and flags of all modules, put back at the end.

    Tensors are put back by value and identity. Plain Python objects among the attributes, and what
    they hold (see `Held`), are put back too.
    Parameters are put back by identity and, if it is known that forward writes into them, by value;
    inside they have no gradients.

    Attributes:
        originals: the parameters; to be told of writes.
        held: what the modules held at first, besides parameters, buffers and modules.

    Args:
        model: what is put back.
        written: names of parameters that forward writes into.
    """

    originals: Originals
    held: Held

    def __init__(self, model: nn.Module, written: Iterable[str] = ()) -> None:
        self._model, self._written = model, tuple(written)
        # a scripted module keeps its attributes in compiled code: nothing to put back by identity
        self._scripted = [m for m in model.modules() if isinstance(m, torch.jit.ScriptModule)]
        self._modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]

    def __enter__(self) -> ModelState:
        self._alone = alone([*self._modules, *self._scripted])
        self._alone.__enter__()
        try:
            self._take()
        except BaseException:
            self._alone.__exit__(*sys.exc_info())
            raise
        return self

    def _take(self) -> None:
        self._registries = [
            {name: dict(module.__dict__[name]) for name in _REGISTRIES} for module in self._modules
        ]
        self._attributes = [
            {k: v for k, v in module.__dict__.items() if k not in _REGISTRIES}
            for module in self._modules
        ]
        self._owners = [
            (module, name)
            for module, attributes in zip(self._modules, self._attributes, strict=True)
            for name in attributes
        ]
        self.held = Held(vars(module)[name] for module, name in self._owners)
        held = (vars(module)[name] for module, name in self._owners)
        self._iterators = {at: value for at, value in enumerate(held) if type(value) in _ITERATORS}
        self._values = self._copies()
        self.originals = Originals(self._model, self._written)
        self._lend_iterators()
        self._gradients = Gradients(self._model, self.held.tensors)
        self._gradients.__enter__()

    def _lend_iterators(self) -> None:
        """Let the model use copies of its iterators, which cannot be put back."""
        for at, iterator in self._iterators.items():
            module, name = self._owners[at]
            vars(module)[name] = copy.copy(iterator)

    def now(self) -> Held:
        """What the modules hold by now."""
        return Held(
            value
            for module in self._modules
            for name, value in vars(module).items()
            if name not in _REGISTRIES
        )

    @property
    def generators(self) -> PythonGenerators:
        """Those of ``random`` and NumPy, and of their kinds that the model holds."""
        return PythonGenerators(self.held.generators)

    def changed_scalars(self) -> Iterator[tuple[nn.Module, str]]:
        """Modules with the names of attributes that hold another number, text or None than before.

        Be it themselves, or in a container or an object.
        """
        for module, attributes in zip(self._modules, self._attributes, strict=True):
            for name, value in attributes.items():
                now = module.__dict__.get(name, value)
                is_scalar = isinstance(value, _SCALARS) and isinstance(now, _SCALARS)
                if is_scalar and now != value and name != "training":
                    yield module, name
        for at, _, _ in self.held.changed():
            yield self._owners[at]
        for at, iterator in self._iterators.items():
            module, name = self._owners[at]
            if repr(vars(module)[name].__reduce__()) != repr(iterator.__reduce__()):
                yield module, name

    def left_tensors(self) -> dict[int, tuple[torch.Tensor, nn.Module, str]]:
        """Tensors that modules hold now and did not when the context was entered, by id.

        With the module and the name of its attribute. Those in place of a buffer do not count, unless
        that was None, or not there.
        """
        found: dict[int, tuple[torch.Tensor, nn.Module, str]] = {}
        owners = [
            (module, name)
            for module in self._modules
            for name in vars(module)
            if name not in _REGISTRIES
        ]
        now = Held(vars(module)[name] for module, name in owners)
        for tensor, at in zip(now.tensors, now.origins, strict=True):
            if tensor not in self.held:
                found[id(tensor)] = (tensor, *owners[at])
        for module, registry in zip(self._modules, self._registries, strict=True):
            for name, buffer in vars(module)["_buffers"].items():
                if buffer is not None and registry["_buffers"].get(name) is None:
                    found[id(buffer)] = (buffer, module, name)
                elif buffer is not None:
                    found.pop(id(buffer), None)
        return {key: each for key, each in found.items() if not isinstance(each[0], nn.Parameter)}

    def gone_tensors(self) -> Iterator[tuple[torch.Tensor, nn.Module, str]]:
        """Tensors that modules held at first, each with the attribute, and hold no more.

        Buffers too, if they are None now, or not there.
        """
        now = self.now()
        for tensor, at in zip(self.held.tensors, self.held.origins, strict=True):
            if tensor not in now and not isinstance(tensor, nn.Parameter):
                yield (tensor, *self._owners[at])
        for module, registry in zip(self._modules, self._registries, strict=True):
            for name, buffer in registry["_buffers"].items():
                if buffer is not None and vars(module)["_buffers"].get(name) is None:
                    yield buffer, module, name

    def held_in(self, owners: Iterable[tuple[nn.Module, str]]) -> Iterator[torch.Tensor]:
        """The tensors that some attributes held at first."""
        wanted = {(id(module), name) for module, name in owners}
        for tensor, at in zip(self.held.tensors, self.held.origins, strict=True):
            module, name = self._owners[at]
            if (id(module), name) in wanted:
                yield tensor

    @property
    def counts(self) -> bool:
        """Whether a number in an attribute is another one than before."""
        return any(True for _ in self._changed_numbers())

    def move_on(self, runs: int) -> None:
        """Numbers in attributes, as if so many more runs had changed them as the one that was made."""
        for cell, key, change in list(self._changed_numbers()):
            cell[key] += change * runs

    def _changed_numbers(self) -> Iterator[tuple[Any, Any, float]]:
        for module, attributes in zip(self._modules, self._attributes, strict=True):
            for name, change in numbers_that_changed(vars(module), attributes):
                yield vars(module), name, change
        for _, cell, before in self.held.changed():
            for key, change in numbers_that_changed(cell, before):
                yield cell, key, change

    def _copies(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        scripted = [[*module.buffers(recurse=False)] for module in self._scripted]
        buffers = [registry["_buffers"].values() for registry in self._registries]
        for held in (*buffers, self.held.tensors, *scripted):
            for tensor in held:
                if _has_values(tensor) and id(tensor) not in kept:
                    kept[id(tensor)] = (tensor, tensor.detach().clone())
        return list(kept.values())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.put_back()
            for at, iterator in self._iterators.items():
                module, name = self._owners[at]
                vars(module)[name] = iterator
        finally:
            self._gradients.__exit__(None, None, None)
            self._alone.__exit__(None, None, None)

    def put_back(self) -> None:
        """Everything as it was when the context was entered; as often as one likes."""
        for module, registry, attributes in zip(
            self._modules, self._registries, self._attributes, strict=True
        ):
            held = module.__dict__
            for name, content in registry.items():
                refill(held[name], content)
            for name in held.keys() - attributes.keys() - _REGISTRIES:
                del held[name]
            held.update(attributes)
        self.held.put_back()
        self.originals.put_back()
        with torch.no_grad():
            for tensor, value in self._values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        self._gradients.forget()
        self._lend_iterators()


def _has_values(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether a tensor is copied: parameters and sparse tensors are put back by identity only."""
    if tensor is None or isinstance(tensor, nn.Parameter) or tensor.is_meta:
        return False
    return tensor.layout is torch.strided
