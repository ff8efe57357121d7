"""Small functions that stand in a graph where the user's code had a statement or a Python object.

All are importable by name, so that generated source can call them, and all return the value that
later nodes read.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from fxpipe.errors import CaptureError


def set_item(target: Any, index: Any, value: Any) -> Any:
    """`target` after ``target[index] = value``."""
    target[index] = value
    return target


def set_attribute(target: Any, name: str, value: Any) -> Any:
    """`target` after ``target.name = value``."""
    setattr(target, name, value)
    return target


def register_buffer(target: Any, name: str, value: Any, persistent: bool) -> Any:
    """`target` after ``target.register_buffer(name, value, persistent)``."""
    target.register_buffer(name, value, persistent)
    return target


def affine(size: int, numerator: int, denominator: int, offset: int) -> int:
    """``size * numerator // denominator + offset``: an integer that follows the batch size."""
    return size * numerator // denominator + offset


def affine_float(size: int, slope: float, offset: float) -> float:
    """``size * slope + offset``: a number that follows the batch size."""
    return size * slope + offset


def ratio(numerator: float, size: int) -> float:
    """``numerator / size``: a number that falls with the batch size."""
    return numerator / size


def enter_autocast(
    device_type: str, dtype: torch.dtype | None, enabled: bool, cache_enabled: bool | None
) -> torch.autocast:
    """An autocast context, entered."""
    context = torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
    context.__enter__()  # type: ignore[no-untyped-call]
    return context


def exit_autocast(context: torch.autocast) -> None:
    """Leave the context that `enter_autocast` gave."""
    context.__exit__(None, None, None)


def set_grad_enabled(enabled: bool) -> None:
    """Switch the grad mode for what follows."""
    torch.set_grad_enabled(enabled)


def apply_function(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    """The result of a hand-written ``torch.autograd.Function``."""
    return function.apply(*args, **kwargs)  # type: ignore[no-untyped-call]


def call_hook(target: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """`target` after a method that registers something on it, such as ``register_hook``."""
    getattr(target, method)(*args, **kwargs)
    return target


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, for functions that have no importable name."""
    return function(*args, **kwargs)


def plain_call(module: Any, *args: Any, **kwargs: Any) -> Any:
    """A module's result by ``nn.Module.__call__``, hooks and all, past a ``__call__`` of its class.

    When the module was recorded its own ``__call__`` had run, and had changed the arguments or not.
    """
    if isinstance(module, Watched):
        return module.plain_call(*args, **kwargs)
    return torch.nn.Module.__call__(module, *args, **kwargs)


def entrance(module: torch.nn.Module, via: str) -> Callable[..., Any]:
    """What to call for a module's result: ``via`` is as in the metadata of a node."""
    match via:
        case "plain":
            return partial(plain_call, module)
        case "forward":
            return module.forward
        case _:
            return module


class Watched:
    """A module whose calls are watched: what modules inside return is kept until it is taken.

    Args:
        module: the module.
        *paths: of modules inside, relative to it.
    """

    def __init__(self, module: torch.nn.Module, *paths: str) -> None:
        self._module = module
        self._paths = paths
        self._results: dict[str, list[Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result."""
        with self._watching():
            return self._module(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module's own forward returns."""
        with self._watching():
            return self._module.forward(*args, **kwargs)

    def plain_call(self, *args: Any, **kwargs: Any) -> Any:
        """What the module's plain call returns."""
        with self._watching():
            return plain_call(self._module, *args, **kwargs)

    def __getitem__(self, path: str) -> list[Any]:
        """What the module of that path has returned, call by call."""
        return self._results[path]

    @contextmanager
    def _watching(self) -> Iterator[None]:
        # Another thread may run the same module for another stage at the same time.
        thread = threading.get_ident()
        handles = []
        for path in self._paths:
            results = self._results[path] = []

            def keep(module: Any, args: Any, result: Any, results: list[Any] = results) -> None:
                if threading.get_ident() == thread:
                    results.append(result)

            handles.append(self._module.get_submodule(path).register_forward_hook(keep))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def check_value(value: Any, expected: bool | int | float | list[Any]) -> None:
    """Nothing, if a value that the model decided on is what it was when recorded.

    Raises:
        CaptureError: if it is another, so that the recorded graph does not hold for this data.
    """
    found = value.tolist() if isinstance(value, torch.Tensor) else value
    if found != expected:
        raise CaptureError(
            f"the model decides on a value of its data: {expected!r} when recorded, now {found!r}; "
            "the recorded graph does not hold for this micro-batch"
        )


def check_passes(value: torch.Tensor | bool, expected: bool, where: str) -> None:
    """Nothing, if a condition of the model's that only raises comes out as it does when all is well.

    Args:
        value: one truth value.
        where: the user's line, for the message.

    Raises:
        ValueError: if it comes out otherwise; the model itself would raise too.
    """
    if bool(value) != expected:
        raise ValueError(f"a check of the model fails, at {where}")


def rebuild_tuple(cls: type[Any], items: Sequence[Any]) -> Any:
    """A named tuple (or another subclass of tuple) of type `cls` made of `items`."""
    if hasattr(cls, "n_fields"):  # a struct sequence, such as torch.return_types.max
        return cls(items)
    return tuple.__new__(cls, items)


def rebuild_list(cls: type[Any], items: Sequence[Any], state: Mapping[str, Any]) -> Any:
    """A list of subclass `cls` with `items`, and `state` as further attributes."""
    made = _empty(cls)
    list.extend(made, items)
    getattr(made, "__dict__", {}).update(state)
    return made


def rebuild_mapping(
    cls: type[Any], items: Mapping[Any, Any], state: Mapping[str, Any], factory: Any = None
) -> Any:
    """A dict of subclass `cls` with `items`, and `state` as further attributes."""
    made: Any = defaultdict(factory) if cls is defaultdict else _empty(cls)
    for key, value in items.items():
        made[key] = value
    getattr(made, "__dict__", {}).update(state)
    return made


def rebuild_object(cls: type[Any], state: Mapping[str, Any]) -> Any:
    """An object of type `cls` with the attributes of `state`; its ``__init__`` is not called."""
    made = _empty(cls)
    for name, value in state.items():
        object.__setattr__(made, name, value)
    return made


def _empty(cls: type[Any]) -> Any:
    make: Any = cls.__new__
    return make(cls)


def draws_random(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an ATen operator takes numbers from a default generator.

    A dropout of probability zero, or one with a generator of the user's own, does not.
    """
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    parameters = operator._schema.arguments
    given = {each.name: value for each, value in zip(parameters, args, strict=False)}
    given.update(kwargs)
    if given.get("generator") is not None:
        return False
    if given.get("train") is False or given.get("training") is False:
        return False
    names = {each.name for each in parameters}
    if "dropout_p" in names:
        return bool(given.get("dropout_p", 0.0))
    if "dropout" in names:  # recurrent kernels: between the layers, in training
        return bool(given.get("dropout", 0.0))
    return True
