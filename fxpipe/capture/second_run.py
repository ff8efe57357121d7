"""Modules that keep state in attributes (``self.done = True``): do they go on as they began?

A recording holds for every run. What Python does in the first run only, or every other time, it would do
every time, or never.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from torch import nn

from fxpipe.capture.axes import Sizes
from fxpipe.capture.fallback import (
    DecidesOtherwiseError,
    Decisions,
    FallbackError,
    KeepWholeError,
    RefusedError,
)
from fxpipe.capture.later_runs import compare_runs
from fxpipe.capture.leaves import common_path, parameter_share
from fxpipe.capture.leftovers import CarriedError
from fxpipe.capture.modules import RANDOM_SHARE
from fxpipe.capture.record import Recording
from fxpipe.capture.remedies import CARRIED, FLAG

_AHEAD: Final = (3, 10, 98, 99, 998, 999, 1_000_000)
"""How many runs after the second one numbers are looked at: also where they are 100 and 1,000, before
and after they are counted up."""


def check_second_run(
    model: nn.Module,
    decisions: Decisions,
    first: Recording,
    again: Callable[..., Recording],
    sizes: Sizes,
) -> None:
    """Compare a recording, if attributes were changed, with one of the run after it.

    That run has what the first one left: if it reads a tensor there, the tensor is state.

    Where numbers were changed, also with some of much later runs: their values are what many such
    changes add up to, so that a threshold is found (``if self.calls > 100:``) without so many runs.

    A decision on data that comes out otherwise is no difference: it is checked before each run.

    Args:
        again: records the second run; ``ahead=n`` the one that is so many runs further on.
        sizes: of both recordings.

    Raises:
        KeepWholeError: if they differ: the module with the attribute may stay whole.
        CaptureError: if that is most of the model.
    """
    if not first.has_state:
        return
    for ahead in (0, *_AHEAD) if first.counts else (0,):
        _check_later(model, decisions, first, partial(again, ahead=ahead), sizes, ahead)


def _check_later(
    model: nn.Module,
    decisions: Decisions,
    first: Recording,
    again: Callable[[], Recording],
    sizes: Sizes,
    ahead: int,
) -> None:
    which = f"in run {ahead + 2}" if ahead else "in a second run"
    try:
        second = again()
    except CarriedError as reason:
        raise _carried(model, decisions, reason) from None
    except FallbackError as reason:
        decisions.learn(reason, is_layer=False)
        return
    except (
        Exception
    ):  # the model may refuse to run twice on the same, or need data: nothing is told
        return
    try:
        compare_runs(first, second, sizes, which)
    except DecidesOtherwiseError:
        return
    except KeepWholeError as reason:
        raise _kept(model, decisions, first, reason) from None


def _carried(model: nn.Module, decisions: Decisions, reason: CarriedError) -> KeepWholeError:
    """A run reads a tensor that the one before has left."""
    owner = reason.path if reason.owner is None else reason.owner
    path = common_path(owner, reason.path)
    return _keep(model, decisions, path, reason, reason.reason, reason.remedy)


def _kept(
    model: nn.Module, decisions: Decisions, first: Recording, reason: KeepWholeError
) -> KeepWholeError:
    """A run takes other steps than the one before."""
    changed = {owner: (name,) for owner, name in first.state.items()} or first.tensors
    remedy = FLAG if first.state else CARRIED
    # of several, the one in the innermost module around the place
    owner = max(changed, key=lambda owner: len(common_path(owner, reason.path)))
    names = " and ".join(map(repr, changed[owner]))
    which = "its attribute" if len(changed[owner]) == 1 else "its attributes"
    text = f"{reason.reason}: it changes {which} {names}, which a recording would freeze"
    path = common_path(owner, reason.path)
    return _keep(model, decisions, path, reason, text, remedy)


def _keep(
    model: nn.Module,
    decisions: Decisions,
    path: str,
    reason: FallbackError,
    text: str,
    remedy: str,
) -> KeepWholeError:
    """Why a module stays whole.

    Raises:
        CaptureError: if it is most of the model.
    """
    place = path, reason.source, reason.operation
    if parameter_share(model, path) > RANDOM_SHARE:
        decisions.learn(RefusedError(text, *place, remedy=remedy), is_layer=False)
    return KeepWholeError(text, *place, remedy=remedy)
