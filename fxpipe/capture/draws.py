"""Draws from ``random`` and NumPy: a recording would freeze them, so the module that draws is found."""

from __future__ import annotations

import ast
import math
import operator
import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final

from torch import nn

from fxpipe.capture import remedies
from fxpipe.capture.comparisons import Comparison, comparisons_of
from fxpipe.capture.sources import Sources
from fxpipe.generators import KINDS, PythonGenerators

_OPTION: Final = re.compile(r"drop_?path|layer_?drop|stochastic_depth|spec_?augment|mask_\w*_prob")
"""Names of options that are known to make models draw so."""

_UNIT: Final = (["0", "1"], ["0.0", "1.0"])

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
        count_all: whether draws count that are only compared, and always with the same outcome.

    Attributes:
        source: the user's line that drew last; empty if it was not seen.
        passed_over: whether a draw did not count.
    """

    def __init__(
        self, generators: PythonGenerators, is_on: bool, *, count_all: bool = False
    ) -> None:
        self._generators = generators
        self._is_on, self._count_all = is_on, count_all
        self.passed_over = False
        self._in_leaf = False
        self._is_idle = False
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
                self._is_idle = self._may_pass_over() and is_idle(sources.frame_of(frame))
            elif event == "c_return" and self._is_idle and _draws(argument):
                self._last, self._is_idle, self.passed_over = self._generators.now(), False, True
                self.source = ""

        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _may_pass_over(self) -> bool:
        return not (self._count_all or self._in_leaf) and self._generators.now() == self._last

    def since_last(self) -> bool:
        """Whether any number was drawn since this was asked last, or since a leaf ended."""
        return self._is_on and self._generators.now() != self._last

    @contextmanager
    def leaf(self) -> Iterator[Drew]:
        """What is drawn inside is a leaf's."""
        drew = Drew()
        self._in_leaf = True
        try:
            yield drew
        finally:
            self._in_leaf = False
        if self._is_on:
            now = self._generators.now()
            drew.answer = now != self._last
            self._last = now


def _draws(function: Any) -> bool:
    """Whether a built-in function is a generator's, and not one that asks for its state."""
    is_ours = function.__name__ in ("getstate", "setstate", "get_state", "set_state")
    return not is_ours and isinstance(getattr(function, "__self__", None), KINDS)


def is_idle(frame: FrameType | None) -> bool:
    """Whether a frame draws a number from 0 to 1 and only compares it, with one outcome for all of them.

    Stochastic depth that is switched off does: ``if random.random() < 0.0:``.
    """
    if frame is None:
        return False
    compared = comparisons_of(frame, partial(_draws_up_to_one, frame))
    return bool(compared) and all(map(_is_settled, compared))


def _is_settled(comparison: Comparison) -> bool:
    if comparison.compare in (operator.eq, operator.ne):
        return not 0 <= comparison.other < 1
    return comparison.outcome(0.0) == comparison.outcome(math.nextafter(1.0, 0.0))


def _draws_up_to_one(frame: FrameType, call: ast.Call) -> bool:
    """Whether a call is ``random.random()`` or ``random.uniform(0, 1)``. NumPy's are not seen."""
    names = ast.unparse(call.func).split(".")
    found = {**frame.f_globals, **frame.f_locals}.get(names[0])
    for name in names[1:]:
        found = getattr(found, name, None)
    if call.keywords or not isinstance(getattr(found, "__self__", None), random.Random):
        return False
    bounds = [ast.unparse(each) for each in call.args]
    name = getattr(found, "__name__", "")
    return (name == "random" and not bounds) or (name == "uniform" and bounds in _UNIT)


def remedy(model: nn.Module, path: str) -> str:
    """What to do about draws in a module; names the options that seem to be the cause."""
    found = options(model, path)
    if not found:
        off = options(model, path, on=False)
        listed = ", ".join(f"{name} (now {value!r})" for name, value in off.items())
        return remedies.DRAWS_ANYHOW.format(listed) if off else remedies.RANDOM
    listed = ", ".join(f"{name} (now {value!r})" for name, value in found.items())
    return f"switch off what draws: {listed}; or {remedies.RANDOM}"


def options(model: nn.Module, path: str, *, on: bool = True) -> dict[str, Any]:
    """Options of a module, or else of the model, that are on (off), with names that say they draw."""
    for name in dict.fromkeys((path, "")):
        module = model.get_submodule(name)
        prefix = f"{name}." if name else ""
        found = _matching(getattr(module, "config", None), f"{prefix}config.", on)
        found |= _matching(module, prefix, on)
        if found:
            return found
    return {}


def _matching(owner: object, prefix: str, on: bool) -> dict[str, Any]:
    held = getattr(owner, "__dict__", {})
    return {
        prefix + name: value
        for name, value in held.items()
        if isinstance(value, bool | int | float) and bool(value) == on and _OPTION.search(name)
    }
