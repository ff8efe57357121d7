"""`Recordings`: the ways a model has been called, each recorded when it is first met."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import NoneType
from typing import Any, Final

import torch
from torch import Tensor, nn

from fxpipe.capture.axes import free_axes, marked
from fxpipe.capture.batch import batch_of, resized
from fxpipe.capture.rows import choose_batch
from fxpipe.capture.signature import flatten
from fxpipe.capture.situation import situation_of
from fxpipe.capture.splits import Splits
from fxpipe.changing import advice
from fxpipe.compiler import Example, Line, captured, first_line, next_line
from fxpipe.ir.capture import Capture
from fxpipe.options import Options
from fxpipe.regimes import Choice, Key, Regimes, covers
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.together import together
from fxpipe.situation import Situation

_MANY_VALUES: Final = 8
_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks")
"""Of a module, by numbers that no two hooks have."""
_PLAIN: Final = (bool, int, float, complex, str, bytes, NoneType)


class Recordings:
    """Finds the situation of a call; records the model where there is none yet.

    The first one decides the placement of all.

    Attributes:
        line: of the first situation; None before it is met.
        splits: what the user says on how inputs are cut.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        lanes: Sequence[Lane],
        backend: Backend,
        line: Line | None,
    ) -> None:
        self.line = line
        self._model = model
        self._options = options
        self.splits = Splits(model, options.split or {})
        self._lanes = lanes
        self._backend = backend
        self._situations: OrderedDict[Hashable, Situation] = OrderedDict()
        self._regimes = Regimes()
        self._without_rows: Capture | None = None
        self._written_out: tuple[str, ...] = () if line is None else _written_out(line)
        self._warned = False
        self._warned_of_number = False

    def situation(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_cut: bool = False
    ) -> Situation:
        """The situation of a call.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            is_cut: whether this is a micro-batch, and not a batch to be cut into some.

        Raises:
            CaptureError: if it is a new one and cannot be recorded.
        """
        chunks = 1 if is_cut else self._options.chunks
        call = self._key(args, kwargs)
        choice = self._choose(call, args, kwargs, chunks)
        found = self._situations.get(choice.key)
        if found is None:
            line = self._record(args, kwargs, chunks, choice.is_free)
            found = self._ready(line, choice.is_free)
            known = self._key(args, kwargs)  # all of it is known with the first recording
            choice = choice if known == call else Choice(known)
            self._situations[choice.key] = found
            self._regimes.note(known, choice.key, found.line.capture)
            self._warn_of_values(choice.key)
            self._forget_one()
        self._situations.move_to_end(choice.key)
        return found

    def _choose(
        self, call: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any], chunks: int
    ) -> Choice:
        """The recording for a call; sizes beyond those recorded are tried."""
        if not self._options.dynamic:
            return Choice(call)

        def recorded() -> Capture:
            example = self._micro_batch(args, kwargs, chunks)
            with self._where_inputs_are(args, kwargs):
                return captured(self._model, example, replace(self._options, verify=False))

        def captures(key: Key) -> list[Capture]:
            found = self._situations.get(key)
            return [] if found is None else [each.line.capture for each in found.siblings]

        return self._regimes.choose(call, self._sizes(args, kwargs), recorded, captures)

    def _sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """The sizes of a call that a recording leaves free, by name."""
        leaves, layout = flatten((args, dict(kwargs)))
        marks = marked(self._model, leaves, layout, self._options.dynamic)
        return {axis.mark.name: axis.size for axis in free_axes(marks, leaves, None)}

    def clear(self) -> None:
        """Forget all situations; the placement stays."""
        self._situations.clear()
        self._regimes.clear()

    # ---- keys ------------------------------------------------------------------------------------

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """What a recording depends on.

        Besides the situation: which modules the model has, with what forwards, and the plain attributes
        and hooks of those that the stages do not call but write out.
        """
        return (
            self._situation_of(args, kwargs, self._like),
            tuple(map(_identity, self._model.modules())),
            self._attributes(),
        )

    def _situation_of(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], like: Capture | None
    ) -> Hashable:
        return situation_of(
            self._model,
            args,
            kwargs,
            like=like,
            splits=self.splits,
            dynamic=self._options.dynamic,
        )

    @property
    def _like(self) -> Capture | None:
        """The capture that says where inputs have their rows.

        What seemed to be rows may turn out to be none: the first graph's last nodes had no edges.
        """
        if self._without_rows is not None:
            return self._without_rows
        return self.line.capture if self.line is not None else None

    def _attributes(self) -> Hashable:
        found = []
        for path in self._written_out:
            attributes = vars(self._model.get_submodule(path))
            found += [(path, name, v) for name, v in attributes.items() if type(v) in _PLAIN]
            found += [(path, name, tuple(attributes[name])) for name in _HOOKS if attributes[name]]
        return tuple(found)

    def _warn_of_values(self, key: Any) -> None:
        """Say if attributes alone have led to many recordings."""
        alike = [other for other in self._situations if other[:2] == key[:2]]  # type: ignore[index]
        if len(alike) < _MANY_VALUES or self._warned:
            return
        self._warned = True
        changed = {item[:2] for other in alike for item in set(other[2]) ^ set(key[2])}  # type: ignore[index]
        names = ", ".join(sorted(".".join(filter(None, place)) for place in changed))
        warnings.warn(
            f"the model was recorded {len(alike)} times because {names} changed. An attribute that "
            "changes from step to step is better a buffer, or in a module that no cut divides.",
            stacklevel=5,
        )

    def _forget_one(self) -> None:
        """Drop the recording that was not used for longest if there are too many, and say why."""
        most = self._options.max_recordings
        if len(self._situations) <= most:
            return
        first = self.line.capture if self.line is not None else None
        oldest = next(k for k, s in self._situations.items() if s.line.capture is not first)
        del self._situations[oldest]
        if not self._warned_of_number:
            self._warned_of_number = True
            captures = [situation.line.capture for situation in self._situations.values()]
            warnings.warn(
                f"the model was called in more than {most} ways, and each is a recording of its own: "
                "the one not used for longest is dropped, and made again when it is met. "
                f"{advice(captures)}",
                stacklevel=5,
            )

    # ---- recording -------------------------------------------------------------------------------

    def _record(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], chunks: int, is_free: bool
    ) -> Line:
        if self.line is None:
            example = self._micro_batch(args, kwargs, chunks)
            self.line = first_line(self._model, example, self._options)
            self._written_out = _written_out(self.line)
            return self.line
        like = self.line.capture
        known = self._situation_of(args, kwargs, like) == like.situation
        if known and not self._situations and covers(like.ranges, self._sizes(args, kwargs)):
            return self.line
        line, may_be_whole = self._next_line(args, kwargs, chunks, is_free)
        if may_be_whole and not line.capture.has_rows:
            self._without_rows = line.capture
        return line

    def _ready(self, line: Line, is_free: bool = True) -> Situation:
        return Situation(
            self._model,
            line,
            self._lanes,
            self._backend,
            self._options,
            lambda args, kwargs: self._ready(self._next_line(args, kwargs, 1, is_free)[0], is_free),
        )

    def _next_line(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], chunks: int, is_free: bool
    ) -> tuple[Line, bool]:
        assert self.line is not None
        options = self._options if is_free else replace(self._options, dynamic=None)
        example = self._micro_batch(args, kwargs, chunks)
        with self._where_inputs_are(args, kwargs):
            line = next_line(self._model, example, options, self.line)
        return line, example.may_be_whole

    def _where_inputs_are(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        """Where the model is recorded: the stages may have spread it over devices."""
        leaves, _ = flatten((args, dict(kwargs)))
        device = next((x.device for x in leaves if isinstance(x, Tensor)), self._options.devices[0])
        tensors = [*self._model.parameters(), *self._model.buffers()]
        return together(tensors, torch.device(device))

    def _micro_batch(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], chunks: int
    ) -> Example:
        """The arguments with as many rows as the first micro-batch, but two at least."""
        leaves, layout = flatten((args, dict(kwargs)))
        marks = marked(self._model, leaves, layout, self._options.dynamic)
        if self.line is None:
            batch = choose_batch(self._model, leaves, layout, marks)
        else:
            batch = batch_of(leaves, layout, self._like, marks)
        if self.splits:
            batch = self.splits.applied(batch, leaves, layout)
        if batch is None:
            return Example(args, dict(kwargs), (None,) * len(leaves))
        if batch.size == 0:
            raise ValueError("the batch is empty: it has 0 rows")
        if chunks == 1:
            return Example(args, dict(kwargs), batch.dims, may_be_whole=not self.splits)
        rows = max(2, -(-batch.size // min(chunks, batch.size)))
        # No input that is given whole may look as if it had the micro-batch's rows.
        others = {n for leaf in leaves for n in getattr(leaf, "shape", ())} - {batch.size}
        while rows in others:
            rows += 1
        some_args, some_kwargs = layout.unflatten(resized(leaves, batch, rows))
        return Example(some_args, some_kwargs, batch.dims)


def _identity(module: nn.Module) -> Hashable:
    """A module, its class, and a forward of its own if it was given one."""
    own = vars(module).get("forward")
    return id(module), type(module), own if isinstance(own, Hashable) else id(own)


def _written_out(line: Line) -> tuple[str, ...]:
    """Modules whose own Python the stages do not run: a cut divides them, or they cannot be called."""
    stages = line.plan.stages
    found = {
        span.path: None
        for span in line.capture.spans
        if span.fixed is not None or len({stages[n] for n in span.nodes if n in stages}) > 1
    }
    return tuple(found)
