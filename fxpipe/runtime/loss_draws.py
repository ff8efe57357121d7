"""Random numbers that a loss draws: the same ones where it is computed again.

The model's draws have keys (`fxpipe.runtime.rng`); a loss is the caller's own code and draws from
whatever generator it likes, on the last stage, one micro-batch after another. Where that stage runs its
forward again, the loss is computed again too, and must not draw anew:

    forward     loss: generators from `before` on        noted in the frame, if they have moved
    backward    loss again: `before` put back, then as they were
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from fxpipe.generators import Generators, PythonGenerators, States
from fxpipe.held import generators_in
from fxpipe.runtime.rng import default_generator, one_at_a_time


class LossDraws:
    """The generators that a loss may draw from.

    Args:
        loss_fn: the loss; None: the model's own, whose draws have keys.
        device: of the last stage.
    """

    def __init__(self, loss_fn: Any, device: torch.device) -> None:
        held = [] if loss_fn is None else generators_of(loss_fn)
        devices = dict.fromkeys((torch.device("cpu"), device))
        torchs = [default_generator(each) for each in devices]
        torchs += [each for each in held if isinstance(each, torch.Generator)]
        self._all = Generators([*torchs, *_without(held, torchs)], python=True)
        self._python = PythonGenerators(held)
        self._torchs = torchs
        self._before: tuple[Any, ...] = ()

    def begin(self) -> States:
        """The states that the loss begins with."""
        self._before = self._now()
        return self._all.states()

    def moved(self) -> bool:
        """Whether any number was drawn since `begin`."""
        before, self._before = self._before, ()
        return self._now() != before

    @contextmanager
    def replayed(self, before: States) -> Iterator[None]:
        """Inside, the loss draws what it drew from those states on; afterwards all is as it was."""
        with one_at_a_time(), self._all.replayed(before):
            yield

    def _now(self) -> tuple[Any, ...]:
        torchs = (bytes(each.get_state().numpy().data) for each in self._torchs)
        return (*torchs, *self._python.now())


def generators_of(function: Any) -> list[Any]:
    """The generators that a function, or a module, has at hand: held, closed over, or global."""
    if isinstance(function, nn.Module):
        return generators_in([function])
    if isinstance(function, partial):
        bound = generators_in((), [*function.args, *function.keywords.values()])
        return [*bound, *generators_of(function.func)]
    if isinstance(function, types.MethodType):
        return [*generators_of(function.__self__), *generators_of(function.__func__)]
    if isinstance(function, types.FunctionType):
        found = list(_reached(function))
        return generators_in((each for each in found if isinstance(each, nn.Module)), found)
    return generators_in((), [function])


def _reached(function: types.FunctionType) -> Iterator[Any]:
    """What a function has closed over, its defaults, and the globals that it names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing in it yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    names = function.__code__.co_names
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _without(found: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    known = {id(each) for each in others}
    return [each for each in found if id(each) not in known]
