"""Generators of random numbers other than torch's default ones: their states, read and put back."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

KINDS: Final = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)
"""Classes of generators that a model may hold."""


def state(generator: Any) -> Any:
    """The state of a generator, for `set_state`."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state()


def set_state(generator: Any, value: Any) -> None:
    """Put a generator back to a state it was in."""
    if isinstance(generator, random.Random):
        generator.setstate(value)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = value
    else:
        generator.set_state(value)


States = list[Any]
"""Of `Generators.states`."""


class Generators:
    """Generators of random numbers, read and put back together.

    Args:
        held: generators of any kind.
        python: whether those of ``random`` and NumPy, too.
    """

    def __init__(self, held: Iterable[Any] = (), *, python: bool) -> None:
        self._held = list(held)
        self._python = python

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self._python or bool(self._held)

    def states(self) -> States:
        """Their states, to go back to."""
        defaults = [random.getstate(), np.random.get_state()] if self._python else []
        return [*defaults, *map(state, self._held)]

    def put_back(self, states: States) -> None:
        """Let them go on from earlier states."""
        if self._python:
            random.setstate(states[0])
            np.random.set_state(states[1])
            states = states[2:]
        for generator, value in zip(self._held, states, strict=True):
            set_state(generator, value)

    @contextmanager
    def replayed(self, before: States) -> Iterator[None]:
        """Inside, they go on from earlier states; afterwards they are as they were."""
        after = self.states()
        self.put_back(before)
        try:
            yield
        finally:
            self.put_back(after)

    @contextmanager
    def as_before_if_it_fails(self) -> Iterator[None]:
        """If what is inside fails, they are as they were."""
        before = self.states()
        try:
            yield
        except BaseException:
            self.put_back(before)
            raise


class PythonGenerators(Generators):
    """The generators that torch does not know: those of ``random`` and NumPy, and some that are held.

    Args:
        held: generators of any kind; torch's are left out, since torch functions name them.
    """

    def __init__(self, held: Iterable[Any] = ()) -> None:
        super().__init__((g for g in held if not isinstance(g, torch.Generator)), python=True)

    def now(self) -> tuple[Any, ...]:
        """Their states, comparable with ``==``."""
        kind, keys, position, has_gauss, gauss = np.random.get_state()
        default = (
            random.getstate(),
            kind,
            bytes(np.asarray(keys).data),
            position,
            has_gauss,
            gauss,
        )
        return (*default, *(pickle.dumps(state(each)) for each in self._held))
