"""Shallow copies of the user's modules, made only where something inside must be swapped.

A stage that has to run a keyed dropout inside ``model.encoder`` calls a *shell* of the encoder:

    user's encoder ─── _modules ──► attention (user's own)      shell of encoder ──► attention (same)
                            └─────► dropout   (user's own)                      └──► shell of dropout

A shell has the same class, the same parameter and buffer dictionaries, the same hooks (called with
the user's module) and, from step to step, the same training flag and attributes; what a forward
writes on it goes back to the user's module. Nothing is ever written into the user's module that
another stage could see half done. Modules that hold nothing to be swapped are used as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Swap:
    """What a shell does otherwise than its module.

    Attributes:
        forward: makes the forward from the shell and the forward it would have.
        own_parameters: whether the shell's parameters can be other objects than the module's.
        attribute: where a call of the module finds its forward.
    """

    forward: Callable[[nn.Module, Forward], Forward] | None = None
    own_parameters: bool = False
    attribute: str = "forward"


_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Shells:
    """The shells of one stage.

    Args:
        swaps: module → what its shell does otherwise.
    """

    def __init__(self, swaps: Mapping[nn.Module, Swap]) -> None:
        self._swaps = swaps
        self._made: dict[nn.Module, Shell | None] = {}

    def of(self, module: nn.Module) -> nn.Module:
        """The module's shell; the module itself if nothing inside is swapped."""
        shell = self._shell_of(module)
        return module if shell is None else shell.module

    def of_owner(self, module: nn.Module) -> Shell | None:
        """The shell record of a module, if it has one."""
        return self._made.get(module)

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
            self._made[module] = Shell(module, children, swap or Swap())
        return self._made[module]


class Shell:
    """One shell, and what keeps it and the user's module alike.

    Attributes:
        user: the user's module.
        module: the shell itself.
    """

    def __init__(
        self, user: nn.Module, children: Mapping[nn.Module, nn.Module], swap: Swap
    ) -> None:
        self.user = user
        self.module: nn.Module = object.__new__(type(user))
        self._children = children
        self._managed = {"_modules", *_HOOKS}
        if swap.own_parameters:
            self._managed.add("_parameters")
            self.module.__dict__["_parameters"] = user._parameters.copy()
        if swap.forward is not None:
            name = swap.attribute
            self._managed.add(name)
            usual = user.__dict__.get(name) or getattr(type(user), name).__get__(self.module)
            self.module.__dict__[name] = swap.forward(self.module, usual)
        self._followed: dict[str, Any] = {}
        self.follow()

    def follow(self) -> None:
        """Take over what has changed on the user's module since the last step."""
        own, managed = self.module.__dict__, self._managed
        followed: dict[str, Any] = {}
        for name, value in self.user.__dict__.items():
            if name not in managed:
                followed[name] = own[name] = self._inside(value)
        for name in self._followed.keys() - followed.keys():
            own.pop(name, None)
        self._followed = followed
        own["_modules"] = {
            name: self._children.get(child, child) if child is not None else None
            for name, child in self.user._modules.items()
        }
        for name in _HOOKS:
            hooks = getattr(self.user, name)
            own[name] = _with_module(hooks, self.user) if hooks else hooks

    def write_back(self) -> None:
        """Give the user's module the attributes that forwards have set or deleted on the shell."""
        own, user, followed = self.module.__dict__, self.user.__dict__, self._followed
        for name, value in own.items():
            if name not in self._managed and (name not in followed or followed[name] is not value):
                user[name] = followed[name] = value
        for name in [name for name in followed if name not in own]:
            user.pop(name, None)
            del followed[name]

    def _inside(self, value: Any) -> Any:
        """An attribute's value, with shells for the children it refers to."""
        if isinstance(value, nn.Module):
            return self._children.get(value, value)
        if type(value) in (list, tuple) and any(
            isinstance(item, nn.Module) and item in self._children for item in value
        ):
            return type(value)(self._inside(item) for item in value)
        return value


def _with_module(hooks: Mapping[int, Callable[..., Any]], user: nn.Module) -> Any:
    """Hooks that are called with the user's module in place of the shell."""

    def wrap(key: int, hook: Callable[..., Any]) -> Callable[..., Any]:
        def called(shell: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # A hook may have taken itself off during the step.
            return hook(user, *args, **kwargs) if key in hooks else None

        return called

    return OrderedDict((key, wrap(key, hook)) for key, hook in hooks.items())
