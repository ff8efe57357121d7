"""Shallow copies of the user's modules, made only where something inside must be swapped.

A stage that has to run a keyed dropout inside ``model.encoder`` calls a *shell* of the encoder:

    user's encoder ─── _modules ──► attention (user's own)      shell of encoder ──► attention (same)
                            └─────► dropout   (user's own)                      └──► shell of dropout

A shell has the same class, the same parameter and buffer dictionaries, the same hooks (called with
the user's module) and, from step to step, the same training flag and attributes, which refer to
shells where they referred to modules that have one. What a forward writes on it goes back to the
user's module: before a hook of the module is called, and at the end of the step. Modules that hold
nothing to be swapped are used as they are.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, Final

from torch import Tensor, nn

from fxpipe.runtime.leaves import NO_LEAVES, Leaves, leaf_of

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Swap:
    """What a shell does otherwise than its module.

    Attributes:
        forward: makes the forward from the shell and the forward it would have.
        own_parameters: whether the shell's parameters can be other objects than the module's.
        own_buffers: the same for its buffers.
        attribute: where a call of the module finds its forward.
        call: makes a whole call, hooks included, from the shell and the call it would have.
    """

    forward: Callable[[nn.Module, Forward], Forward] | None = None
    own_parameters: bool = False
    own_buffers: bool = False
    attribute: str = "forward"
    call: Callable[[nn.Module, Forward], Forward] | None = None

    def around(self, forward: Callable[[nn.Module, Forward], Forward]) -> Swap:
        """This swap's forward, made of the other one instead of the module's own."""
        outer = self.forward
        if outer is None:
            return replace(self, forward=forward)
        return replace(self, forward=lambda shell, usual: outer(shell, forward(shell, usual)))


COMPILED_CALL: Final = "_compiled_call_impl"
"""Where ``module.compile()`` puts what a call of the module then runs."""
_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Shells:
    """The shells of one stage.

    Args:
        swaps: module → what its shell does otherwise.
        hooks_see_users: whether hooks are called with the user's module, and not with its shell: only
            where no other thread has shells of the same modules.
    """

    def __init__(self, swaps: Mapping[nn.Module, Swap], *, hooks_see_users: bool = True) -> None:
        self._swaps = swaps
        self.hooks_see_users = hooks_see_users
        self._made: dict[nn.Module, Shell | None] = {}
        self._users: dict[nn.Module, nn.Module] = {}

    def of(self, module: nn.Module) -> nn.Module:
        """The module's shell; the module itself if nothing inside is swapped."""
        shell = self._shell_of(module)
        return module if shell is None else shell.module

    def made_of(self, module: nn.Module) -> nn.Module:
        """The same, but no shell is made that is not made yet."""
        shell = self._made.get(module)
        return module if shell is None else shell.module

    def user_of(self, module: nn.Module) -> nn.Module:
        """The user's module of a shell; any other module itself."""
        return self._users.get(module, module)

    def __iter__(self) -> Iterator[Shell]:
        return (shell for shell in self._made.values() if shell is not None)

    def _shell_of(self, module: nn.Module) -> Shell | None:
        if module in self._made:
            return self._made[module]
        self._made[module] = None  # a module that contains itself ends here
        children: dict[nn.Module, nn.Module] = {}
        for child in module._modules.values():
            shell = None if child is None else self._shell_of(child)
            if child is not None and shell is not None:
                children[child] = shell.module
        swap = self._swaps.get(module)
        if children or swap is not None:
            made = self._made[module] = Shell(module, children, swap or Swap(), self)
            self._users[made.module] = module
        return self._made[module]


class Shell:
    """One shell, and what keeps it and the user's module alike.

    Attributes:
        user: the user's module.
        module: the shell itself.
    """

    def __init__(
        self,
        user: nn.Module,
        children: Mapping[nn.Module, nn.Module],
        swap: Swap,
        shells: Shells,
    ) -> None:
        self.user = user
        self.module: nn.Module = object.__new__(type(user))
        self._children = children
        self._shells = shells
        self._managed = {"_modules", *_HOOKS}
        owned = (("_parameters", swap.own_parameters), ("_buffers", swap.own_buffers))
        self._owned = tuple(name for name, owns in owned if owns)
        for name in self._owned:
            self._managed.add(name)
            self.module.__dict__[name] = user.__dict__[name].copy()
        if swap.forward is not None:
            name = swap.attribute
            self._managed.add(name)
            own = user.__dict__.get(name)
            usual = (
                getattr(type(user), name).__get__(self.module)
                if own is None
                else referring_to(own, self._shell_of)
            )
            self.module.__dict__[name] = swap.forward(self.module, usual)
        if swap.call is not None:
            self._managed.add(COMPILED_CALL)
            self.module.__dict__[COMPILED_CALL] = swap.call(self.module, self.module._call_impl)
        self._followed: dict[str, Any] = {}
        self._leaves: Leaves = NO_LEAVES
        self.follow()

    def follow(self) -> None:
        """Take over what has changed on the user's module since the last step."""
        self._take_attributes()
        own = self.module.__dict__
        own["_modules"] = {
            name: self._children.get(child, child) if child is not None else None
            for name, child in self.user._modules.items()
        }
        for name in _HOOKS:
            hooks = getattr(self.user, name)
            wraps = hooks and self._shells.hooks_see_users
            own[name] = self._with_users_module(hooks) if wraps else hooks

    def read(self, leaves: Leaves) -> None:
        """Let the module read these leaves in place of the user's tensors, if it can have its own.

        Attributes may hold parameters too: recurrent layers have a list of theirs.
        """
        if not self._owned:
            return
        self._leaves = leaves
        own, user, followed = self.module.__dict__, self.user.__dict__, self._followed
        for kind in self._owned:
            own[kind].clear()
            own[kind].update({name: leaf_of(leaves, held) for name, held in user[kind].items()})
        for name, value in list(user.items()):  # hooks of another copy may add some
            if _may_refer(value) and name in followed and own.get(name) is followed[name]:
                followed[name] = own[name] = referring_to(value, self._shell_of, leaves)

    def _take_attributes(self) -> None:
        own, managed = self.module.__dict__, self._managed
        followed: dict[str, Any] = {}
        for name, value in self.user.__dict__.items():
            if name not in managed:
                followed[name] = own[name] = referring_to(value, self._shell_of)
        for name in self._followed.keys() - followed.keys():
            own.pop(name, None)
        self._followed = followed

    def write_back(self) -> None:
        """Give the user's module the attributes that forwards have set or deleted on the shell."""
        own, user, followed = self.module.__dict__, self.user.__dict__, self._followed
        changed = [
            (name, value)
            for name, value in own.items()
            if name not in self._managed and (name not in followed or followed[name] is not value)
        ]
        tensors = {leaf: tensor for tensor, leaf in self._leaves.items()} if changed else {}
        for name, value in changed:
            followed[name] = value
            user[name] = referring_to(value, self._shells.user_of, tensors)
        for name in [name for name in followed if name not in own]:
            user.pop(name, None)
            del followed[name]

    def _shell_of(self, module: nn.Module) -> nn.Module:
        return self.module if module is self.user else self._shells.made_of(module)

    def _with_users_module(self, hooks: Mapping[int, Callable[..., Any]]) -> Any:
        """Hooks that see the user's module in place of the shell, as the forward has left it so far."""

        def wrap(key: int, hook: Callable[..., Any]) -> Callable[..., Any]:
            def called(shell: nn.Module, *args: Any, **kwargs: Any) -> Any:
                if key not in hooks:  # a hook may have taken itself off during the step
                    return None
                self.write_back()
                try:
                    return hook(self.user, *args, **kwargs)
                finally:
                    self._take_attributes()

            return called

        return OrderedDict((key, wrap(key, hook)) for key, hook in hooks.items())


def referring_to(
    value: Any, shell_of: Callable[[nn.Module], nn.Module], leaves: Leaves = NO_LEAVES
) -> Any:
    """An attribute's value that refers to shells, and leaves, where it referred to what is the user's.

    It looks into lists, tuples, dictionaries, bound methods, partial functions and what a function
    has closed over. The value itself if there is nothing to change.
    """
    if not _may_refer(value):  # nearly all that a module has
        return value
    return _Referring(shell_of, leaves).to(value)


def _may_refer(value: Any) -> bool:
    if type(value) in _REBUILD:
        return bool(value)
    return isinstance(value, nn.Module | Tensor)


class _Referring:
    def __init__(self, shell_of: Callable[[nn.Module], nn.Module], leaves: Leaves) -> None:
        self._shell_of = shell_of
        self._leaves = leaves
        self._open: set[int] = set()  # containers that contain themselves end here

    def to(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self._shell_of(value)
        if self._leaves and isinstance(value, Tensor):
            return leaf_of(self._leaves, value)
        rebuild = _REBUILD.get(type(value))
        if rebuild is None or id(value) in self._open:
            return value
        self._open.add(id(value))
        try:
            return rebuild(value, self.to)
        finally:
            self._open.discard(id(value))


_To = Callable[[Any], Any]


def _sequence(value: Any, to: _To) -> Any:
    items = [to(item) for item in value]
    return value if _all_same(items, value) else type(value)(items)


def _mapping(value: Any, to: _To) -> Any:
    items = [to(item) for item in value.values()]
    if _all_same(items, value.values()):
        return value
    made = value.copy()  # keeps the type, and a default factory
    made.update(zip(value, items, strict=True))
    return made


def _method(value: Any, to: _To) -> Any:
    owner = to(value.__self__)
    return value if owner is value.__self__ else MethodType(value.__func__, owner)


def _partial(value: Any, to: _To) -> Any:
    function, args, named = to(value.func), to(value.args), to(value.keywords)
    if function is value.func and args is value.args and named is value.keywords:
        return value
    return partial(function, *args, **named)


def _function(value: Any, to: _To) -> Any:
    if value.__closure__ is None or hasattr(value, "_torchdynamo_orig_callable"):
        return value  # a compiled function stays compiled
    cells = tuple([_cell(cell, to) for cell in value.__closure__])
    if _all_same(cells, value.__closure__):
        return value
    made = FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
    )
    made.__kwdefaults__ = value.__kwdefaults__
    made.__dict__.update(value.__dict__)
    return made


def _cell(cell: Any, to: _To) -> Any:
    try:
        held = cell.cell_contents
    except ValueError:  # nothing in it yet
        return cell
    inside = to(held)
    return cell if inside is held else CellType(inside)


def _all_same(ones: Iterable[Any], others: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(ones, others, strict=True))


_REBUILD: Final[Mapping[type, Callable[[Any, _To], Any]]] = {
    list: _sequence,
    tuple: _sequence,
    dict: _mapping,
    OrderedDict: _mapping,
    defaultdict: _mapping,
    MethodType: _method,
    partial: _partial,
    FunctionType: _function,
}
