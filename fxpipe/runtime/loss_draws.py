"""Random numbers that a loss draws: the same ones where it is computed again.

The model's draws have keys (`fxpipe.runtime.rng`); a loss is the caller's own code and draws from
whatever generator it likes, on the last stage, one micro-batch after another. Where that stage runs its
forward again, the loss is computed again too, and must not draw anew:

    forward     loss: generators from `before` on        noted in the frame, if they have moved
    backward    loss again: `before` put back, then as they were
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from fxpipe.generators import Generators, PythonGenerators, States
from fxpipe.held import generators_in
from fxpipe.runtime.rng import default_generator, one_at_a_time

Before: TypeAlias = tuple[States, States | None]
"""The states that a loss began with: of torch's generators, and of others if they are looked at."""


class LossDraws:
    """The generators that the losses of one step may draw from.

    To look at those of ``random`` and NumPy takes longer than a small loss: if the first loss of a step
    draws from none of them, the others are taken to be like it.

    Args:
        loss_fn: the loss.
        device: of the last stage.
    """

    def __init__(self, loss_fn: Any, device: torch.device) -> None:
        held = generators_of(loss_fn)
        devices = dict.fromkeys((torch.device("cpu"), device))
        torchs = [default_generator(each) for each in devices]
        torchs += [each for each in held if isinstance(each, torch.Generator)]
        others = [each for each in held if not isinstance(each, torch.Generator)]
        self._torchs = Generators({id(each): each for each in torchs}.values(), python=False)
        self._others = PythonGenerators(others)
        self._holds_others = bool(others)
        self._looks = True
        self._start: tuple[Any, ...] = ()

    def begin(self) -> Before:
        """The states that a loss begins with."""
        self._start = self._others.now() if self._looks else ()
        return self._torchs.states(), self._others.states() if self._looks else None

    def moved(self, before: Before) -> bool:
        """Whether any number was drawn since `begin`, which gave the states `before`."""
        others = self._looks and self._others.now() != self._start
        self._start, self._looks = (), others or self._holds_others
        return others or not all(map(torch.equal, self._torchs.states(), before[0]))

    @contextmanager
    def replayed(self, before: Before) -> Iterator[None]:
        """Inside, the loss draws what it drew from those states on; afterwards all is as it was."""
        torchs, others = before
        with one_at_a_time(), self._torchs.replayed(torchs):
            with nullcontext() if others is None else self._others.replayed(others):
                yield


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
