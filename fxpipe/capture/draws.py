"""Draws from ``random`` and NumPy: a recording would freeze them, so the module that draws is found."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from torch import nn

from fxpipe.capture import remedies
from fxpipe.capture.sources import Sources
from fxpipe.generators import KINDS, PythonGenerators

_OPTION: Final = re.compile(r"drop_?path|layer_?drop|stochastic_depth|spec_?augment|mask_\w*_prob")
"""Names of options that are known to make models draw so."""

REASON: Final = "its Python code draws from random or numpy.random, which a recording would freeze"


@dataclass
class Drew:
    """Whether a leaf has drawn; known once it has run."""

    answer: bool = False


class PythonDraws:
    """Finds out where in a recording numbers are drawn that torch does not see.

    Args:
        generators: the generators to look at.
        is_on: whether to look at all: it takes a while.

    Attributes:
        source: the user's line that drew last; empty if it was not seen.
    """

    def __init__(self, generators: PythonGenerators, is_on: bool) -> None:
        self._generators = generators
        self._is_on = is_on
        self.source = ""
        self._start = generators.now()
        self._last = self._start

    @property
    def any(self) -> bool:
        """Whether any number was drawn since the beginning."""
        return self._generators.now() != self._start

    @contextmanager
    def watched(self, sources: Sources) -> Iterator[None]:
        """Inside, the line of the last draw is noted, unless another profiler is in place."""
        if not self._is_on or sys.getprofile() is not None:
            yield
            return

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            if event == "c_call" and _draws(argument):
                self.source = sources.of(frame)

        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def since_last(self) -> bool:
        """Whether any number was drawn since this was asked last, or since a leaf ended."""
        return self._is_on and self._generators.now() != self._last

    @contextmanager
    def leaf(self) -> Iterator[Drew]:
        """What is drawn inside is a leaf's."""
        drew = Drew()
        yield drew
        if self._is_on:
            now = self._generators.now()
            drew.answer = now != self._last
            self._last = now


def _draws(function: Any) -> bool:
    """Whether a built-in function is a generator's, and not one that asks for its state."""
    is_ours = function.__name__ in ("getstate", "setstate", "get_state", "set_state")
    return not is_ours and isinstance(getattr(function, "__self__", None), KINDS)


def remedy(model: nn.Module, path: str) -> str:
    """What to do about draws in a module; names the options that seem to be the cause."""
    found = options(model, path)
    if not found:
        return remedies.RANDOM
    listed = ", ".join(f"{name} (now {value!r})" for name, value in found.items())
    return f"switch off what draws: {listed}; or {remedies.RANDOM}"


def options(model: nn.Module, path: str) -> dict[str, Any]:
    """Options of a module, or else of the model, that are on and whose names say that they draw."""
    for name in dict.fromkeys((path, "")):
        module = model.get_submodule(name)
        prefix = f"{name}." if name else ""
        found = _matching(getattr(module, "config", None), f"{prefix}config.")
        found |= _matching(module, prefix)
        if found:
            return found
    return {}


def _matching(owner: object, prefix: str) -> dict[str, Any]:
    held = getattr(owner, "__dict__", {})
    return {
        prefix + name: value
        for name, value in held.items()
        if isinstance(value, bool | int | float) and value and _OPTION.search(name)
    }
