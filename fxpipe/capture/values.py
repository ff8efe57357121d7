"""Python values as arguments of graph nodes, and results bound to the nodes that made them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
import torch.fx
from torch.nn.utils.rnn import PackedSequence

from fxpipe import ops
from fxpipe.capture import remedies
from fxpipe.capture.containers import (
    PLAIN,
    Parts,
    Shape,
    enclosed,
    holds_tensors,
    take_apart,
    tensors,
)
from fxpipe.capture.fallback import KeepWholeError, LookInsideError
from fxpipe.capture.leftovers import Leftovers
from fxpipe.capture.script import Script
from fxpipe.capture.shadows import Sizes
from fxpipe.ir.spec import TensorSpec

_SIZED_PARTS = (0, 1)
"""Of a packed sequence: its data and the batch sizes of the steps; the rest has one item a row."""

_KEYS = (str, int, float, bool, type(None), torch.dtype)


class Dependence(IntEnum):
    """What a value is computed from, at most."""

    NOTHING = 0
    BUFFERS = 1
    """Buffers: known before the model runs, and the same in most runs."""
    INPUTS = 2
    """Inputs, and maybe buffers: known before the model runs."""
    WEIGHTS = 3
    """Parameters, layers or random numbers: known only when the model runs."""


class Values:
    """Which node made which object.

    Attributes:
        changed_by_modules: names of buffers that modules which are one node wrote into.
        hidden: tensors made inside a leaf by modules of its own: id → (tensor, path of the leaf).
        is_fake: whether a tensor stands for one without data (it can be no constant).
        left: what the run before this one left.
    """

    def __init__(self, script: Script, is_fake: Callable[[torch.Tensor], bool]) -> None:
        self._script = script
        self._is_fake = is_fake
        self._made: dict[int, tuple[Any, torch.fx.Node]] = {}
        self._dependence: dict[torch.fx.Node, Dependence] = {}
        self._sized_by_data: set[torch.fx.Node] = set()
        self.hidden: dict[int, tuple[torch.Tensor, str]] = {}
        self.changed_by_modules: set[str] = set()
        self.left = Leftovers()

    # -- values → arguments ------------------------------------------------------------------------

    def argument(self, value: Any, leaf: str | None = None) -> Any:
        """A value as an fx argument; nodes that rebuild containers are written as needed.

        `leaf`: path of the leaf the value is handed to.

        Raises:
            KeepWholeError: if a tensor's origin was not seen.
            LookInsideError: if the leaf is handed an object of the user's that holds tensors.
        """
        if isinstance(value, torch.Tensor):
            return self.node(value)
        if isinstance(value, np.generic):
            return value.item()  # a np.float64 is a float, but its text is not
        if isinstance(value, Sizes):
            raise value.refuse()
        if isinstance(value, torch.Size):
            return tuple(value)
        if isinstance(value, slice):
            bounds = (value.start, value.stop, value.step)
            return slice(*(self.argument(bound, leaf) for bound in bounds))
        if (isinstance(value, PLAIN) and type(value) in PLAIN) or isinstance(value, range):
            return value
        if id(value) in self._made:
            return self._made[id(value)][1]
        apart = take_apart(value)
        if apart is None and self.encloses(value):
            kind = type(value).__name__
            raise self._refuse(f"it hands on a {kind} that holds tensors", remedies.ENCLOSED)
        if apart is None or not (apart[0].is_plain or holds_tensors(value)):
            return self._script.constant(value)
        return self._container(value, *apart, leaf)

    def _container(self, value: Any, parts: Parts, children: list[Any], leaf: str | None) -> Any:
        if not all(map(_is_key, parts.items)):
            raise self._refuse(
                f"it uses a {parts.cls.__name__} with keys that are no plain values", remedies.KEYS
            )
        if leaf is not None and parts.shape is Shape.OBJECT and not _is_record(value):
            reason = f"it is handed a {parts.cls.__name__} that holds tensors"
            raise LookInsideError(reason, leaf, self._here(), remedy=remedies.OBJECT)
        inner = [self.argument(held, leaf) for held in children]
        if parts.is_plain:
            return parts.make(inner)
        return self._script.emit(
            "call_function", *rebuild_call(parts, inner, self._script.constant), value=value
        )

    def encloses(self, value: Any) -> bool:
        """Whether tensors of this run are in something that cannot be taken apart."""
        return any(id(tensor) in self._made for tensor in enclosed(value))

    def result(self, value: Any) -> Any:
        """A leaf of the model's result as an fx argument."""
        if isinstance(value, torch.Size):
            return self._script.emit("call_function", torch.Size, (tuple(value),), value=value)
        if isinstance(value, slice):
            bounds = (value.start, value.stop, value.step)
            return self._script.emit("call_function", slice, bounds, value=value)
        return value if type(value) in PLAIN else self.argument(value)

    def node(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node that made a tensor, or one that reads it as parameter, buffer or constant.

        Raises:
            KeepWholeError: if its origin was not seen.
            LookInsideError: if it came out of a leaf on a way that was not seen.
        """
        made = self._made.get(id(tensor))
        if made is not None:
            return made[1]
        if tensor in self.left:
            return self._leftover(tensor)
        parameter = self._script.parameter(tensor)
        if parameter is not None:
            return parameter
        if id(tensor) in self.hidden:
            leaf = self.hidden[id(tensor)][1]
            reason = "a tensor leaves it by a hook or an attribute"
            raise LookInsideError(reason, leaf, self._here(), remedy=remedies.ESCAPES)
        if isinstance(tensor, torch.nn.Parameter):
            reason = "it uses a parameter that is not among the model's"
            raise self._refuse(reason, remedies.UNREGISTERED)
        if tensor.requires_grad or tensor.grad_fn is not None or self._is_fake(tensor):
            reason = "it uses a tensor that was computed where fxpipe could not see"
            raise self._refuse(reason, remedies.ORIGIN)
        return self._script.constant(tensor)

    def refuse_state(self, value: Any) -> None:
        """Nothing, unless the run before has left a tensor in a value.

        Raises:
            CarriedError: if it has, and would compute it otherwise the next time.
        """
        for tensor in tensors(value):
            if id(tensor) not in self._made:
                self.left.refuse_state(tensor, self._path, self._here())

    def _leftover(self, tensor: torch.Tensor) -> torch.fx.Node:
        self.refuse_state(tensor)
        node = self._script.parameter(tensor) or self._script.constant(tensor)
        self.left.note(tensor, node)
        return node

    def node_if_any(self, value: Any) -> torch.fx.Node | None:
        """The node of a tensor, as `node` gives it; of an object, only if one node made it."""
        return self.node(value) if isinstance(value, torch.Tensor) else self.known(value)

    def known(self, value: Any) -> torch.fx.Node | None:
        """The node bound to a tensor or object, if there is one."""
        made = self._made.get(id(value))
        return None if made is None else made[1]

    def tensors(self) -> Iterator[torch.Tensor]:
        """The tensors that were made in this run, as far as they were seen."""
        for value, _ in (*self._made.values(), *self.hidden.values()):
            if isinstance(value, torch.Tensor):
                yield value

    def maker(self, tensor: torch.Tensor) -> str | None:
        """Path of the module that made a tensor in this run; None if it is not known."""
        made = self.known(tensor)
        if made is None:
            return self.hidden[id(tensor)][1] if id(tensor) in self.hidden else None
        return str(made.target if made.op == "call_module" else made.meta.get("path", ""))

    # -- results → nodes ---------------------------------------------------------------------------

    def bind(
        self, value: Any, node: torch.fx.Node, on: Dependence, sized_by_data: bool = False
    ) -> None:
        """Remember that `node` made `value`; nodes that unpack a container are written at once.

        Args:
            on: what the value is computed from.
            sized_by_data: whether shapes inside it depend on values of tensors. Those of packed
                sequences always do.
        """
        self._bind(value, node, (on, sized_by_data), set())

    def _bind(
        self, value: Any, node: torch.fx.Node, how: tuple[Dependence, bool], seen: set[int]
    ) -> None:
        self._dependence[node] = how[0]
        if isinstance(value, torch.Tensor):
            if how[1] and value.dim():
                self._sized_by_data.add(node)
            self._assign(value, node)
            return
        if id(value) in seen or not holds_tensors(value):
            return
        seen.add(id(value))
        apart = take_apart(value)
        if apart is None:
            return
        parts, children = apart
        if parts.shape is Shape.OBJECT:
            self._made[id(value)] = (value, node)
        packed = isinstance(value, PackedSequence)
        for step, inner in zip(parts.steps(), children, strict=True):
            if holds_tensors(inner):
                part = (how[0], step in _SIZED_PARTS) if packed else how
                self._bind(inner, self._unpack(node, step, inner), part, seen)

    def _unpack(self, node: torch.fx.Node, step: Any, inner: Any) -> torch.fx.Node:
        if isinstance(step, str) and step.startswith("."):
            return self._script.emit("call_function", getattr, (node, step[1:]), value=inner)
        return self._script.emit("call_function", operator.getitem, (node, step), value=inner)

    def _assign(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        before = self.known(tensor) or self._script.parameter(tensor)
        if before is not None and not _writes(node) and self._script.frames:
            self._script.frame.aliases.append((id(tensor), before, node))
        self._made[id(tensor)] = (tensor, node)

    def restore_aliases(
        self, aliases: list[tuple[int, torch.fx.Node, torch.fx.Node]], returned: Collection[str]
    ) -> None:
        """Undo bindings to nodes of a finished module call that only passed a tensor on.

        An eval-mode dropout returns its argument, and ``self.weight.float()`` the parameter itself, if
        that is its type: what comes after the call and reads the tensor must not seem to read what the
        call made of it. What the call returns stays bound.
        """
        for key, before, now in reversed(aliases):
            tensor, node = self._made[key]
            if node is not now or now.name in returned:
                continue
            if before.op == "get_attr":  # a parameter or buffer: it is found by its name
                del self._made[key]
            else:
                self._made[key] = (tensor, before)

    def refresh(self) -> None:
        """Note at the end which tensors autograd follows: a write through a view changes that.

        Such a value crosses to another stage after its last write, as it is now.
        """
        for value, node in self._made.values():
            spec = node.meta["spec"]
            if isinstance(value, torch.Tensor) and isinstance(spec, TensorSpec):
                node.meta["spec"] = replace(spec, requires_grad=value.requires_grad)

    # -- what depends on data ----------------------------------------------------------------------

    def dependence(self, value: Any) -> Dependence:
        """What the tensors inside a value are computed from."""
        found = Dependence.NOTHING
        for tensor in tensors(value):
            made = self._made.get(id(tensor))
            if made is not None:
                found = max(found, self._dependence.get(made[1], Dependence.NOTHING))
            elif self.left.is_state(tensor):
                found = Dependence.WEIGHTS
            elif isinstance(tensor, torch.nn.Parameter):
                found = Dependence.WEIGHTS
            else:
                found = max(found, self._read(self._script.parameter(tensor)))
        return found

    def _read(self, buffer: torch.fx.Node | None) -> Dependence:
        """What a buffer depends on, or a tensor that is not the model's."""
        if buffer is None:
            return Dependence.NOTHING
        is_changed = str(buffer.target) in self.changed_by_modules
        return Dependence.WEIGHTS if is_changed else Dependence.BUFFERS

    def is_sized_by_data(self, value: Any) -> bool:
        """Whether the shape of a tensor inside a value depends on values of tensors."""
        if not self._sized_by_data:
            return False
        made = (self._made.get(id(tensor)) for tensor in tensors(value))
        return any(entry is not None and entry[1] in self._sized_by_data for entry in made)

    def _here(self) -> str:
        return self._script.sources.here()

    def _refuse(self, reason: str, remedy: str) -> KeepWholeError:
        return KeepWholeError(reason, self._path, self._here(), remedy=remedy)

    @property
    def _path(self) -> str:
        frames = self._script.frames
        return frames[-1].path if frames else ""


def _writes(node: torch.fx.Node) -> bool:
    return any(storage in node.meta["mutates"] for storage in node.meta["storages"])


def _is_key(key: Any) -> bool:
    return all(map(_is_key, key)) if type(key) is tuple else isinstance(key, _KEYS)


def _is_record(value: Any) -> bool:
    return hasattr(value, "__dataclass_fields__") or hasattr(value, "__attrs_attrs__")


def rebuild_call(
    parts: Parts, children: list[Any], constant: Callable[[Any], torch.fx.Node]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Function and arguments of the node that builds a container of a special class."""
    count = len(parts.items)
    items, state = children[:count], dict(zip(parts.names, children[count:], strict=True))
    cls = constant(parts.cls)
    match parts.shape:
        case Shape.TUPLE_SUBCLASS:
            return ops.rebuild_tuple, (cls, items)
        case Shape.LIST_SUBCLASS:
            return ops.rebuild_list, (cls, items, state)
        case Shape.DICT_SUBCLASS:
            pairs = dict(zip(parts.items, items, strict=True))
            extra = () if parts.factory is None else (constant(parts.factory),)
            return ops.rebuild_mapping, (cls, pairs, state, *extra)
        case _:
            return ops.rebuild_object, (cls, state)
