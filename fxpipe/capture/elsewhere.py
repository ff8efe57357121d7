"""Whether a recording also holds at sizes that it was not made at.

Between the sizes of its recordings a graph is believed. At others the model may do something else
(``if x.shape[0] > 1:``): it is run once more there, and what it does is compared.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from fxpipe.capture.axes import Axis, Sizes
from fxpipe.capture.call import Call
from fxpipe.capture.fallback import Decisions, FallbackError, KeepWholeError
from fxpipe.capture.record import Recording, record_once
from fxpipe.capture.unify import confirm


class Elsewhere:
    """Compares a unified recording with one more; it holds neither the model nor any tensor of the call.

    Args:
        call: the recorded one.
        recording: the unified recording.
        decisions: those that it was made under.
        mode: ``"real"`` or ``"fake"``.
    """

    def __init__(self, call: Call, recording: Recording, decisions: Decisions, mode: str) -> None:
        self._model = weakref.ref(call.model)
        self._layout, self._axes = call.layout, call.axes
        self._base = tuple(axis.size for axis in call.axes)
        self._recording = replace(recording, inputs=[], outputs=[], values={})
        self._decisions, self._mode = _bare(decisions), mode

    def __call__(self, leaves: list[Any]) -> bool:
        """Whether the model does with these leaves what the recording says.

        Raises:
            Exception: what the model raises on them.
        """
        model = self._model()
        if model is None:
            return False
        try:
            other = record_once(model, leaves, self._layout, self._decisions, self._mode)
        except FallbackError:
            return False
        point = tuple(_size(axis, leaves) for axis in self._axes)
        return _agree(self._recording, other, Sizes(self._axes, (self._base, point)))


def _bare(decisions: Decisions) -> Decisions:
    """The same decisions, with reasons that hold no tracebacks: their frames hold tensors."""
    leaves, inside = (
        {path: _bare_reason(why) for path, why in reasons.items()}
        for reasons in (decisions.leaves, decisions.inside)
    )
    return replace(decisions, leaves=leaves, inside=inside)


def _bare_reason(why: FallbackError) -> FallbackError:
    return type(why)(why.reason, why.path, why.source, why.operation, remedy=why.remedy)


def _size(axis: Axis, leaves: list[Any]) -> int:
    leaf, dim = axis.places[0]
    size: int = leaves[leaf].shape[dim]
    return size


def _agree(recording: Recording, other: Recording, sizes: Sizes) -> bool:
    compared = replace(recording)
    try:
        confirm(compared, other, sizes)
    except KeepWholeError:
        return False
    # a call whose arguments differ could not be made of the module as a whole
    spans = zip(recording.spans, compared.spans, strict=True)
    return all(before.fixed == after.fixed for before, after in spans)
