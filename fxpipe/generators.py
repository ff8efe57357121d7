"""Generators of random numbers other than torch's default ones: their states, read and put back."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator, Sequence
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


@contextmanager
def as_before_if_it_fails(held: Sequence[Any], *, python: bool) -> Iterator[None]:
    """If what is inside fails, generators are as they were.

    Args:
        held: generators of any kind.
        python: whether those of ``random`` and NumPy, too.
    """
    states = [state(generator) for generator in held]
    defaults = (random.getstate(), np.random.get_state()) if python else None
    try:
        yield
    except BaseException:
        for generator, before in zip(held, states, strict=True):
            set_state(generator, before)
        if defaults is not None:
            random.setstate(defaults[0])
            np.random.set_state(defaults[1])
        raise


class PythonGenerators:
    """The generators that torch does not know: those of ``random`` and NumPy, and some that are held.

    Args:
        held: generators of any kind; torch's are left out, since torch functions name them.
    """

    def __init__(self, held: Iterable[Any] = ()) -> None:
        self._held = [each for each in held if not isinstance(each, torch.Generator)]

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

    @contextmanager
    def replayed(self, before: PythonStates) -> Iterator[None]:
        """Inside, the generators go on from earlier states; afterwards they are as they were."""
        after = self.states()
        self._set(before)
        try:
            yield
        finally:
            self._set(after)

    def states(self) -> PythonStates:
        """Their states, to go back to."""
        return [random.getstate(), np.random.get_state(), *map(state, self._held)]

    def _set(self, states: PythonStates) -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for generator, value in zip(self._held, states[2:], strict=True):
            set_state(generator, value)


PythonStates = list[Any]
"""Of `PythonGenerators.states`."""
