"""`Switches`: fractions that switch something of a module on, such as the rate of its dropout.

A stage that calls a module runs the module's own Python, with its attributes as they are. But which
modules draw random numbers is known from the recording: a layer whose rate was 0 then draws nothing in
it, and would later draw numbers without keys, other ones when a forward runs again.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final

from torch import nn

_OF_TORCH: Final = frozenset(vars(nn.Module()))
_Place = tuple[int, str]


class Switches:
    """Tells which attributes of modules are fractions now that were 0 when the model was recorded.

    Args:
        model: the modules are its own.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._numbers = count()
        self._watched: dict[_Place, tuple[int, dict[str, Any]]] = {}

    def look(self) -> None:
        """The model was recorded: attributes that are 0 are watched from now on."""
        attributes = {id(held): held for held in map(vars, self._model.modules())}
        self._watched = {
            (where, name): known
            for (where, name), known in self._watched.items()
            if where in attributes
        }
        for where, held in attributes.items():
            for name, value in held.items():
                place = (where, name)
                if _is_off(value) and name not in _OF_TORCH and place not in self._watched:
                    self._watched[place] = next(self._numbers), held

    def on(self) -> tuple[int, ...]:
        """The watched attributes that are fractions other than 0, each by a number of its own."""
        watched = self._watched.items()
        return tuple([number for (_, name), (number, held) in watched if _is_on(held.get(name))])


def _is_off(value: object) -> bool:
    return type(value) in (int, float) and value == 0


def _is_on(value: object) -> bool:
    return type(value) is float and value != 0
