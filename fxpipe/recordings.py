"""`Recordings`: the ways a model has been called, each recorded when it is first met."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from torch import nn

from fxpipe.capture.batch import given_batch, resized
from fxpipe.capture.rows import for_rows
from fxpipe.capture.signature import flatten
from fxpipe.capture.situation import situation_of
from fxpipe.capture.splits import Splits
from fxpipe.changing import advice
from fxpipe.compiler import Line, captured, first_line, line_like, next_line
from fxpipe.errors import FxPipeError
from fxpipe.example import Example, Examples
from fxpipe.followed import Followed
from fxpipe.ir.capture import Capture
from fxpipe.ir.findings import Fate
from fxpipe.options import Options
from fxpipe.portals.calls import span_fates
from fxpipe.regimes import Choice, Key, Regimes, covers
from fxpipe.runtime.backend import Backend
from fxpipe.runtime.lane import Lane
from fxpipe.runtime.loss import Call
from fxpipe.situation import Anew, Situation
from fxpipe.switches import Switches

_MANY_VALUES: Final = 8


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
        self._examples = Examples(
            model, options, self.splits, None if line is None else line.capture
        )
        self._lanes = lanes
        self._backend = backend
        self._situations: OrderedDict[Hashable, Situation] = OrderedDict()
        self._regimes = Regimes()
        self._followed = Followed(model)
        self._switches = Switches(model)
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
            self._switches.look()
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
            example = self._examples.micro_batch(args, kwargs, chunks)
            with self._examples.where_inputs_are(args, kwargs):
                return captured(self._model, example, replace(self._options, verify=False))

        def holds(capture: Capture) -> bool:
            example = self._examples.micro_batch(args, kwargs, chunks)
            return self._holds(capture, (example.args, example.kwargs))

        def captures(key: Key) -> list[Capture]:
            found = self._situations.get(key)
            return [] if found is None else [each.line.capture for each in found.siblings]

        return self._regimes.choose(
            call, self._examples.sizes(args, kwargs), recorded, captures, holds
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the stages' work in a turn that has not asked for a situation: a call's backward."""
        self._followed.entries(self._written_out)
        yield
        self.ran()

    def ran(self) -> None:
        """The stages have run: what they have put into modules leads to no new recording."""
        self._followed.ran(self._written_out)

    def clear(self) -> None:
        """Forget all situations; the placement stays."""
        self._situations.clear()
        self._regimes.clear()

    # ---- keys ------------------------------------------------------------------------------------

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """What a recording depends on.

        Besides the situation: which modules the model has, with what forwards; which of their attributes
        have become fractions (`Switches`); and what is in those that the stages do not call but write
        out.
        """
        return (
            self._situation_of(args, kwargs, self._examples.like(*flatten((args, dict(kwargs))))),
            (tuple(map(_identity, self._model.modules())), self._switches.on()),
            self._followed.entries(self._written_out),
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

    def _warn_of_values(self, key: Any) -> None:
        """Say if attributes alone have led to many recordings."""
        alike = {other[2] for other in self._situations if other[:2] == key[:2]}  # type: ignore[index]
        if len(alike) < _MANY_VALUES or self._warned:
            return
        self._warned = True
        changed = {item[:2] for other in alike for item in set(other) ^ set(key[2])}
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
            example = self._examples.micro_batch(args, kwargs, chunks)
            self.line = first_line(self._model, example, self._options)
            self._examples.first = self.line.capture
            self._written_out = _written_out(self.line)
            return self.line
        like = self.line.capture
        known = self._situation_of(args, kwargs, like) == like.situation
        if (
            known
            and not self._situations
            and covers(like.ranges, self._examples.sizes(args, kwargs))
        ):
            return self.line
        line, may_be_whole = self._next_line(args, kwargs, chunks, is_free)
        if may_be_whole and not line.capture.has_rows:
            self._examples.learn_without_rows(args, kwargs, line.capture)
        return line

    def _ready(self, line: Line, is_free: bool = True) -> Situation:
        capture = line.capture
        anew = Anew(
            lambda args, kwargs: self._ready(self._next_line(args, kwargs, 1, is_free)[0], is_free),
            lambda args, kwargs: self._ready(
                self._line_for_rows((args, kwargs), capture, is_free), is_free
            ),
            self._holds,
        )
        return Situation(self._model, line, self._lanes, self._backend, self._options, anew)

    def _holds(self, capture: Capture, call: Call) -> bool:
        """Whether a capture says what the model does with a micro-batch of another size."""
        if capture.holds_at is None:
            return False
        leaves, _ = flatten(call)
        with self._examples.where_inputs_are(tuple(call[0]), call[1]):
            try:
                return capture.holds_at(leaves)
            except Exception:  # recorded for its own size, it says so itself
                return False

    def _line_for_rows(self, call: Call, like: Capture, is_free: bool) -> Line:
        """The line of a micro-batch that has its own way because of the number of its rows.

        With more rows than were recorded it may hold for some more, or else for this number alone.
        """
        assert self.line is not None
        assert like.rows is not None
        options = self._recording_options(is_free)
        leaves, layout = flatten(call)
        dims = tuple(leaf.batch_dim for leaf in like.signature.inputs)
        batch = given_batch(leaves, dims)
        assert batch is not None
        args, kwargs = call
        alone = Example(tuple(args), dict(kwargs), (None,) * len(leaves))
        with self._examples.where_inputs_are(tuple(args), kwargs):
            if batch.size > like.rows[1]:
                more_args, more_kwargs = layout.unflatten(resized(leaves, batch, 2 * batch.size))
                more = Example(more_args, more_kwargs, dims)
                with suppress(FxPipeError):  # twice as many are too many
                    return next_line(self._model, more, options, self.line)
            capture = for_rows(captured(self._model, alone, options), like, batch.size)
            return line_like(self._model, capture, options, self.line)

    def _recording_options(self, is_free: bool) -> Options:
        """The options to record with; `is_free`: whether marked sizes stay free."""
        return self._options if is_free else replace(self._options, dynamic=None)

    def _next_line(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], chunks: int, is_free: bool
    ) -> tuple[Line, bool]:
        assert self.line is not None
        options = self._recording_options(is_free)
        example = self._examples.micro_batch(args, kwargs, chunks)
        with self._examples.where_inputs_are(args, kwargs):
            line = next_line(self._model, example, options, self.line)
        return line, example.may_be_whole


def _identity(module: nn.Module) -> Hashable:
    """A module, its class, and a forward of its own if it was given one."""
    own = vars(module).get("forward")
    return id(module), type(module), own if isinstance(own, Hashable) else id(own)


def _written_out(line: Line) -> tuple[str, ...]:
    """Modules whose own Python the stages do not run: a cut divides them, or they cannot be called."""
    fates = span_fates(line.capture, line.plan)
    found = {
        span.path: None
        for span, made in zip(line.capture.spans, fates, strict=True)
        if made.fate not in (Fate.CALLED, Fate.INSIDE)
    }
    return tuple(found)
