"""Names in a stage's source."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

RESERVED = frozenset(
    {*dir(builtins), *keyword.kwlist, *keyword.softkwlist, "self", "stash", "pop"}
    | {"torch", "F", "math", "operator", "ops"}
)
"""What no local variable may be called: the language's words and the names every stage uses."""

ATTRIBUTES = frozenset({"forward", "keyed", "device", "deferring"})
"""Attributes of a stage that no module, parameter or constant may take."""


class Names:
    """Gives out names that are legal, unique and the same at every run.

    A name asked for is kept as it is where that is possible; otherwise it gets a number, the smallest
    that makes it unique. Whoever asks first is served first, so equal questions get equal answers.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*taken}

    def take(self, wish: str) -> str:
        """A free name, as near to `wish` as can be."""
        base = legal(wish)
        name, number = base, 0
        while name in self._taken or keyword.iskeyword(name):
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def __contains__(self, name: str) -> bool:
        return name in self._taken


def legal(wish: str) -> str:
    """`wish` as an identifier: dots become underscores, a number in front gets a word before it."""
    name = re.sub(r"\W", "_", wish.replace(".", "_")) or "value"
    if name[0].isdigit():
        name = f"layer_{name}"
    return name


def quoted(text: str) -> str:
    """`text` as a literal, in double quotes where that needs no escape."""
    literal = repr(text)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in text else literal
