"""Tensors that a stage's forward leaves in attributes of modules: who else reads them must know whose.

    self.aux_loss = …        router's forward, stage 0, micro-batch 3
    loss_fn: m.aux_loss      last stage, micro-batch 1: the number of another micro-batch

Which attributes these are is found by looking at all modules before and after the first forwards. From
then on these alone are looked at, after each forward: the step is told of their tensors
(`fxpipe.runtime.loss_reads`), and shells (`fxpipe.runtime.shells`) give them to the user's modules at
once, so that a loss finds what this very micro-batch has left in modules of the last stage.
"""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn

from fxpipe.held import Held
from fxpipe.runtime.leaves import Place
from fxpipe.runtime.shells import Shell, Shells

if TYPE_CHECKING:
    from fxpipe.runtime.loss_reads import LeftTensors

_LOOKS: Final = 2
"""Forwards around which all modules are looked at: the first one may set things up."""
_LEFT_OUT: Final = frozenset({"_parameters", "_modules"})
_ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})


@dataclass(eq=False)
class Attribute:
    """Where forwards leave tensors.

    Attributes:
        path: of the module.
        name: of the attribute.
        stage: whose forwards these are.
        before: the tensors that were there when the step began.
        last: those of the last forward.
        changes: how many forwards of the step have left other tensors than the one before.
    """

    path: str
    name: str
    stage: int
    holder: Mapping[str, Any]
    before: tuple[weakref.ref[Tensor], ...] = ()
    last: tuple[weakref.ref[Tensor], ...] = ()
    changes: int = 0

    def begin(self) -> None:
        """A step begins."""
        self.before = self.last = tuple(map(weakref.ref, self.tensors()))
        self.changes = 0

    def tensors(self) -> list[Tensor]:
        """Those that are there now, and no parameters; another thread may be changing them."""
        held = tensors_held(self.holder.get(self.name))
        return [tensor for tensor in held if not isinstance(tensor, nn.Parameter)]

    def was_there(self, tensor: Tensor) -> bool:
        """Whether the tensor is as old as that, and not of this step."""
        return any(each() is tensor for each in self.before)

    def note(self) -> list[Tensor]:
        """A forward has ended: the tensors that are of this step."""
        now = self.tensors()
        same = len(now) == len(self.last) and all(
            old() is new for old, new in zip(self.last, now, strict=True)
        )
        if not same:
            self.changes += 1
            self.last = tuple(map(weakref.ref, now))
        return [tensor for tensor in now if not self.was_there(tensor)]


class StageAttributes:
    """The attributes that forwards of one stage leave tensors in.

    Args:
        model: the user's.
        called: paths of the modules that the stage calls.
        holders: of those that it only keeps something in.
        shells: of the stage.
        place: of the stage.
    """

    def __init__(
        self,
        model: nn.Module,
        called: Iterable[str],
        holders: Iterable[str],
        shells: Shells,
        place: Place,
    ) -> None:
        self._model, self._shells = model, shells
        self._called, self._holding = tuple(called), tuple(holders)
        self._place = place
        self._left: list[Attribute] = []
        self._written: list[Shell] = []
        self._looks = _LOOKS
        self._found: dict[tuple[int, str], list[Tensor]] = {}
        self._behind: dict[int, Mapping[str, Any]] = {}

    def begin(self) -> None:
        """A step begins."""
        for attribute in self._left:
            attribute.begin()

    def before_forward(self) -> None:
        """Look at all modules, as long as not all is known."""
        if self._looks:
            self._found = {
                (id(holder), name): tensors_held(value)
                for _, holder in self._holders()
                for name, value in _items(holder)
            }

    def after_forward(self, seen: LeftTensors) -> None:
        """Tell a step what the forward has left, and give it to the user's modules."""
        if self._looks:
            self._looks -= 1
            self._look()
        for shell in self._written:
            shell.write_back()
        for attribute in self._left:
            seen.note(self._place, attribute, attribute.note())

    def _look(self) -> None:
        known = {(id(each.holder), each.name) for each in self._left}
        for path, holder in self._holders():
            for name, value in _items(holder):
                at = id(holder), name
                now = tensors_held(value)
                if now and at not in known and not _are_same(now, self._found.get(at, ())):
                    known.add(at)
                    made = Attribute(path, name, self._place[0], holder)
                    made.before = tuple(map(weakref.ref, self._found.get(at, ())))
                    self._left.append(made)
        self._found = {}
        holders = {id(each.holder) for each in self._left}
        self._written = [each for each in self._shells if id(vars(each.module)) in holders]

    def _holders(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What may hold tensors: modules' attributes and buffers, and what hooks can reach."""
        seen: dict[int, tuple[str, Mapping[str, Any]]] = {}
        for path, module in self._modules():
            own = vars(self._shells.made_of(module))
            buffers = [own["_buffers"]] if "_buffers" in own else []  # a traced module has none
            for holder in (own, *buffers, *self._behind_hooks(module)):
                seen.setdefault(id(holder), (path, holder))
        yield from seen.values()

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        for path in self._called:
            yield from self._model.get_submodule(path).named_modules(prefix=path)
        for path in self._holding:
            yield path, self._model.get_submodule(path)

    def _behind_hooks(self, module: nn.Module) -> Iterator[Mapping[str, Any]]:
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            for name, value in _reached(hook):
                if isinstance(value, nn.Module):
                    yield vars(value)
                elif not isinstance(value, type | types.ModuleType | types.FunctionType):
                    yield self._behind.setdefault(id(value), {name: value})


def tensors_held(value: Any) -> list[Tensor]:
    """The tensors in an attribute's value, in containers and plain objects too."""
    if isinstance(value, Tensor):
        return [value]
    if type(value) in _ATOMS or isinstance(value, nn.Module | types.FunctionType):
        return []
    return Held([value]).tensors


def _items(holder: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in list(holder.items())
        if name not in _LEFT_OUT and type(value) not in _ATOMS
    ]


def _are_same(now: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _reached(hook: Any) -> Iterator[tuple[str, Any]]:
    """What a hook can write to, by name: what it has closed over or is bound to, and globals."""
    if isinstance(hook, partial):
        yield from ((f"argument {at}", value) for at, value in enumerate(hook.args))
        yield from hook.keywords.items()
        yield from _reached(hook.func)
    elif isinstance(hook, types.MethodType):
        yield "self", hook.__self__
        yield from _reached(hook.__func__)
    elif isinstance(hook, types.FunctionType):
        used = inspect.getclosurevars(hook)
        yield from (*used.nonlocals.items(), *used.globals.items())
    else:
        yield type(hook).__name__, hook
