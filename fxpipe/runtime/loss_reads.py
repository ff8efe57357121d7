"""A loss that reads what another stage's forward has left in an attribute is refused.

The loss of a micro-batch is computed on the last stage, right after its forward there. Earlier stages
are at other micro-batches by then: what their modules keep in attributes is of whichever came last,
another one from run to run. Every tensor that enters an operation of the loss is looked up among those.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fxpipe.errors import ExecutionError
from fxpipe.runtime.attributes import Attribute
from fxpipe.runtime.leaves import Place
from fxpipe.runtime.values import tensors_in

_HARMLESS: Final = frozenset(
    vars(torch._C.TensorBase)[name].__get__ for name in ("dtype", "device")
)


class LeftTensors:
    """The tensors that the forwards of a step have left in attributes, of all stages."""

    def __init__(self) -> None:
        self._attributes: dict[Place, dict[Attribute, None]] = {}
        self._left: dict[int, list[tuple[weakref.ref[Tensor], Place, Attribute]]] = {}

    def note(self, place: Place, attribute: Attribute, tensors: Iterable[Tensor]) -> None:
        """A forward at a place has left these in an attribute."""
        self._attributes.setdefault(place, {})[attribute] = None
        for tensor in tensors:
            entries = self._left.setdefault(id(tensor), [])
            entries[:] = [each for each in entries if each[0]() is tensor]
            entries.append((weakref.ref(tensor), place, attribute))

    def others(self, place: Place) -> list[Attribute]:
        """The attributes that forwards at other places leave tensors in."""
        return [
            each
            for where, left in list(self._attributes.items())
            if where != place
            for each in left
        ]

    def source(self, tensor: Tensor, place: Place) -> Attribute | None:
        """The attribute of another place that a tensor comes from, if not surely of this micro-batch.

        One that needs a gradient never is right: no gradient goes back that way.
        """
        is_there = [
            attribute
            for attribute in self.others(place)
            if any(each is tensor for each in attribute.tensors())
        ]  # looked at first: a forward that ends in between has told of it
        told = [
            attribute
            for known, where, attribute in self._left.get(id(tensor), ())
            if known() is tensor and where != place
        ]
        for attribute in told:
            if tensor.requires_grad or attribute.changes > 1:
                return attribute
        for attribute in () if told else is_there:  # of a forward that still runs
            if not attribute.was_there(tensor):
                return attribute
        return None

    @contextmanager
    def watched(self, place: Place, given: Iterable[Any]) -> Iterator[None]:
        """Around a loss.

        Args:
            place: of the last stage.
            given: what the loss is given.

        Raises:
            ExecutionError: if it reads a tensor that another stage has left in an attribute.
        """
        if not self.others(place):
            yield
            return
        watch = _Watch(self, place, given)
        try:
            with watch:
                yield
        except BaseException as error:
            if watch.error not in (None, error):  # the loss has made another one of it
                raise watch.error from error
            raise
        if watch.error is not None:
            raise watch.error


class _Watch(TorchFunctionMode):
    """Looks at what enters operations; what they make, and what the loss is given, may enter others."""

    def __init__(self, left: LeftTensors, place: Place, given: Iterable[Any]) -> None:
        super().__init__()
        self.error: ExecutionError | None = None
        self._left, self._place = left, place
        self._known: dict[int, weakref.ref[Tensor]] = {}
        self._know(given)

    def _check(self, tensor: Tensor) -> None:
        source = self._left.source(tensor, self._place)
        if source is not None:
            self.error = _refusal(source)
            raise self.error

    def _know(self, value: Any) -> None:
        for tensor in tensors_in(value):
            self._known[id(tensor)] = weakref.ref(tensor)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The operation's result."""
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or func in _HARMLESS:
            return func(*args, **kwargs)
        for tensor in tensors_in([args, kwargs]):
            known = self._known.get(id(tensor))
            if known is None or known() is not tensor:
                self._check(tensor)
        made = func(*args, **kwargs)
        self._know(made)
        return made


def _refusal(attribute: Attribute) -> ExecutionError:
    """What to say of a loss that reads an attribute."""
    owner = f"the module {attribute.path!r}" if attribute.path else "the model"
    return ExecutionError(
        f"loss_fn reads a tensor that forward leaves in {owner} ({attribute.name!r}), in stage "
        f"{attribute.stage}: by the time the loss of a micro-batch is computed, on the last stage, it "
        "may be that of another micro-batch, and no gradient goes back that way. Return it from the "
        "model as a part of its result, and let loss_fn take it from there; or run the model as one "
        "stage"
    )
