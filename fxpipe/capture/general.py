"""Recordings of a model at several sizes, made into one that holds for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from fxpipe import ops
from fxpipe.capture.axes import Axis, Sizes, batch_axis, resized_along
from fxpipe.capture.batch import Batch, repeated
from fxpipe.capture.fallback import (
    DecidesOtherwiseError,
    Decisions,
    FallbackError,
    KeepWholeError,
    RefusedError,
)
from fxpipe.capture.formulas import Point
from fxpipe.capture.record import Recording, record, record_once
from fxpipe.capture.remedies import RESULT
from fxpipe.capture.results import output_leaves
from fxpipe.capture.second_run import check_second_run
from fxpipe.capture.signature import Layout
from fxpipe.capture.unify import compare_data, confirm, is_certain, unify
from fxpipe.errors import CaptureError
from fxpipe.ir.signature import OutputLeaf

_ROUNDS: Final = 60
_BASE, _ROWS, _FAR = "base", "rows", "far"


class OtherRowsError(Exception):
    """The model fails on another number of rows than the example has: with `error`."""

    def __init__(self, error: Exception, rows: int, batch: Batch) -> None:
        super().__init__(
            f"To record it for every batch size, the model was run on {rows} rows, where the example "
            f"(in a pipeline: a micro-batch) has {batch.size}. If it takes no batches (the nodes of a "
            "graph are no rows, and a single sample without a batch dimension has none), its inputs "
            "must be given whole: in a pipeline by one micro-batch (chunks=1, or micro_batches=[(args, "
            "kwargs, target)] of step). If other inputs, or other dimensions, have the rows, "
            "split={'name': fxpipe.Split(dim)} says which."
        )
        self.error = error


@dataclass
class Call:
    """The model and its example arguments, taken apart.

    Attributes:
        batch: None if no input has rows.
        marked: the other dimensions that the recording leaves free.
    """

    model: nn.Module
    leaves: list[Any]
    layout: Layout
    batch: Batch | None
    marked: tuple[Axis, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All that may vary: the rows first, if there are any."""
        return self.marked if self.batch is None else (batch_axis(self.batch), *self.marked)

    @property
    def has_no_data(self) -> bool:
        """Whether the model or its inputs are on the meta device."""
        held = [*self.model.parameters(), *self.model.buffers(), *self.leaves]
        return any(isinstance(tensor, torch.Tensor) and tensor.is_meta for tensor in held)

    def recorded_once(
        self, decisions: Decisions, mode: str, runs: int, ahead: int = 0
    ) -> Recording:
        """A recording of the last of some runs on the example; see `record_once`."""
        given = self.model, self.leaves, self.layout, decisions, mode
        return record_once(*given, runs=runs, ahead=ahead)

    def leaves_at(self, point: Point) -> list[Any]:
        """The arguments' leaves with other sizes along the axes."""
        leaves = self.leaves
        for axis, size in zip(self.axes, point, strict=True):
            leaves = resized_along(leaves, axis, size)
        return leaves


@dataclass(frozen=True)
class General:
    """A recording that holds for every size, and its output leaves.

    Attributes:
        rows: of the recording; 1 if no input has rows.
        elsewhere: arguments' leaves of other sizes than the example's, to try the recording on; None
            if the batch alone is free.
        ranges: name of a marked dimension → its least and its largest recorded size.
        among: the least and the largest number of rows recorded; None if no input has rows.
    """

    recording: Recording
    outputs: tuple[OutputLeaf, ...]
    rows: int
    elsewhere: list[Any] | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    among: tuple[int, int] | None = None


def record_general(call: Call, decisions: Decisions, mode: str) -> General:
    """A recording of a call for every size of its axes.

    Raises:
        CaptureError: if the model cannot be recorded, or takes no other size of a marked dimension.
        OtherRowsError: if the model fails on another number of rows.
    """
    if not call.axes:
        recording = _recorded_alone(call, decisions, mode)
        return General(recording, tuple(output_leaves(recording.outputs, None, (1, 1))), 1)
    return _Generalising(call, decisions, mode).run()


def _recorded_alone(call: Call, decisions: Decisions, mode: str) -> Recording:
    """A recording that holds for the example's sizes, compared with more if they may tell anything."""
    while True:
        first = record(call.model, call.leaves, call.layout, decisions, mode)
        makes = any(isinstance(held, torch.Generator) for held in first.constants.values())
        if not makes and not first.state:
            return first
        again, same = (
            record(call.model, call.leaves, call.layout, decisions, mode),
            Sizes((), ((), ())),
        )
        try:
            unify(first, [again], same)
            twice = partial(call.recorded_once, decisions, mode, runs=2)
            check_second_run(call.model, decisions, first, twice, same)
        except KeepWholeError as reason:
            decisions.learn(reason, is_layer=False)
        else:
            return first


@dataclass
class _Made:
    """A recording, its sizes, and under which decisions it was made."""

    point: Point
    recording: Recording
    state: object


class _Generalising:
    """The recordings of one call, made again until all of them rest on the same decisions."""

    def __init__(self, call: Call, decisions: Decisions, mode: str) -> None:
        self._call, self._decisions, self._mode = call, decisions, mode
        self._axes = call.axes
        self._base = tuple(axis.size for axis in self._axes)
        self._made: dict[str, _Made] = {}
        self._open: dict[str, list[Point]] = {}
        self._refused: dict[str, Exception] = {}
        self._few_differ: KeepWholeError | None = None
        if call.batch is not None:
            # first, so that a model which takes no batches is told apart from one that fails anyhow
            self._open[_ROWS] = [self._with(0, call.batch.other)]
        self._open[_BASE] = [self._base]
        for at, axis in enumerate(self._axes):
            if not axis.is_batch:
                self._open[f"other {at}"] = [self._with(at, size) for size in axis.others()]
                self._open |= {f"less {at}": [self._with(at, n)] for n in axis.less()}
                self._open |= {f"near {at} {n}": [self._with(at, n)] for n in axis.near()}

    def _with(self, at: int, size: int) -> Point:
        return (*self._base[:at], size, *self._base[at + 1 :])

    def run(self) -> General:
        """The recording that holds for every size."""
        for _ in range(_ROUNDS):
            self._record_all()
            state = self._decisions.state
            try:
                first = self._unified()
            except KeepWholeError as reason:
                self._made.pop(_BASE)  # it has been written into
                if not self._takes_more_rows(reason):
                    self._learn(reason)
                continue
            if self._few_differ is not None:  # more rows agree: it is their number that decides
                self._made.pop(_BASE)
                self._learn(self._few_differ)
                continue
            if self._decisions.state == state:
                return self._general(first)
        raise CaptureError("the recordings at different sizes never agree")

    # -- recordings ----------------------------------------------------------------------------------

    def _record_all(self) -> None:
        while True:
            state = self._decisions.state
            for key in list(self._open):
                self._record(key)
            if self._call.marked:
                self._open.setdefault(_FAR, self._far_points())
                self._record(_FAR)
            if self._decisions.state == state and all(
                made.state == state for made in self._made.values()
            ):
                return

    def _record(self, key: str) -> None:
        """Record at the first sizes of a key that the model takes."""
        made = self._made.get(key)
        if made is not None and made.state == self._decisions.state:
            return
        self._made.pop(key, None)
        points = self._open[key]
        while points:
            try:
                recording = self._recorded(points[0])
            except CaptureError as error:
                if key not in (_BASE, _ROWS):
                    error.add_note(f"This was {self._sizes([points[0]]).difference(1)}.")
                raise
            except (FallbackError, OtherRowsError):
                raise
            except Exception as error:
                if key == _BASE:
                    raise
                self._refused[key] = error
                points.pop(0)
                continue
            self._made[key] = _Made(points[0], recording, self._decisions.state)
            return
        self._refuse(key)

    def _recorded(self, point: Point) -> Recording:
        call = self._call
        try:
            leaves = call.leaves_at(point)
            return record(call.model, leaves, call.layout, self._decisions, self._mode)
        except (CaptureError, FallbackError):
            raise
        except Exception as error:
            if call.batch is None or point[1:] != self._base[1:] or point[0] == call.batch.size:
                raise
            raise OtherRowsError(error, point[0], call.batch) from error

    def _refuse(self, key: str) -> None:
        """Say which sizes the model does not take; those next to the example's need not be taken.

        Raises:
            CaptureError: if there is no size but the example's.
        """
        error = self._refused[key]
        why = f"{type(error).__name__}: {error}"
        if key == _FAR:
            names = ", ".join(repr(axis.mark.name) for axis in self._call.marked)
            raise CaptureError(
                f"the dimensions marked dynamic ({names}) cannot change together, though each of them "
                f"can alone: {why}\n  What to do: give dimensions that depend on one another one name"
            ) from error
        if key.startswith("other"):
            axis = self._axes[int(key.split()[1])]
            tried = ", ".join(map(str, axis.others()))
            raise CaptureError(
                f"the dimension {axis.mark.name!r} is marked dynamic, but the model takes no other "
                f"size than the example's {axis.size} (tried: {tried}): {why}\n  What to do: mark all "
                "dimensions that change together with one name; write '16*name' if sizes are "
                "multiples of 16; or do not mark it, then each size is recorded when it is met"
            ) from error

    def _far_points(self) -> list[Point]:
        """Points at which every size differs from the base, and from those tried alone if it can."""
        columns = [self._far_sizes(at, axis) for at, axis in enumerate(self._axes)]
        points = zip(*(column + column[-1:] * 4 for column in columns), strict=False)
        return list(dict.fromkeys(tuple(point) for point in points))

    def _far_sizes(self, at: int, axis: Axis) -> list[int]:
        if axis.is_batch:
            assert self._call.batch is not None
            return [self._call.batch.third]
        other = self._made[f"other {at}"].point[at]
        near = [n for n in axis.near() if f"near {at} {n}" in self._made]
        if near:
            return [*axis.far(), *near, other]
        rest = [point[at] for point in self._open[f"other {at}"]]
        return [*(n for n in rest if n != other), other]

    def _takes_more_rows(self, reason: KeepWholeError) -> bool:
        """Go from fewer rows than the example's to more, where that was not tried yet.

        Some of the rows may decide on their data otherwise than all of them; repeated ones decide alike.
        If it was no decision that is checked, the reason stands, unless what is found with more rows is
        that data are the reason.
        """
        if _ROWS not in self._made or self._made[_ROWS].point[0] >= self._base[0]:
            return False
        self._few_differ = None if isinstance(reason, DecidesOtherwiseError) else reason
        self._open[_ROWS] = [self._with(0, 2 * self._base[0])]
        self._made.pop(_ROWS)
        return True

    def _learn(self, reason: KeepWholeError) -> None:
        """Keep a module whole. If fewer rows than the example's did not agree, they are tried again."""
        self._decisions.learn(reason, is_layer=False)
        if self._few_differ is not None and self._call.batch is not None:
            self._few_differ = None
            self._open[_ROWS] = [self._with(0, self._call.batch.other)]
            self._made.pop(_ROWS)

    # -- comparing -----------------------------------------------------------------------------------

    def _sizes(self, points: Sequence[Point]) -> Sizes:
        return Sizes(self._axes, (self._base, *points))

    def _unified(self) -> Recording:
        first = self._made[_BASE].recording
        others = [made for key, made in self._made.items() if key != _BASE]
        sizes = self._sizes([made.point for made in others])
        self._compare_results(first, others)
        unify(first, [made.recording for made in others], sizes)
        if not self._call.marked and not is_certain(first):
            self._confirm(first)
        if self._mode == "real" and self._decisions.leaves and self._call.batch is not None:
            self._try_other_data(first, self._call.batch)
        self._try_second_run(first)
        return first

    def _compare_results(self, first: Recording, others: Sequence[_Made]) -> None:
        """Refuse results with as many tensors as rows: no module that stays whole is of any help.

        Raises:
            CaptureError: if there are some.
        """
        one, base = len(first.outputs), self._base
        for made in others:
            two, rows = len(made.recording.outputs), made.point[0]
            if self._call.batch is not None and one != two and rows > base[0]:
                reason = f"its result has {one} items for {base[0]} rows and {two} for {rows}"
                self._decisions.learn(RefusedError(reason, "", "", remedy=RESULT), is_layer=False)

    def _try_second_run(self, first: Recording) -> None:
        """See whether a module that counts in plain attributes goes on as it began.

        Raises:
            KeepWholeError: if it does not; it may stay whole.
        """
        call = self._call
        again = partial(call.recorded_once, self._decisions, self._mode, runs=2)
        check_second_run(call.model, self._decisions, first, again, self._sizes([self._base]))

    def _confirm(self, first: Recording) -> None:
        assert self._call.batch is not None
        # whole copies of the example decide as it does
        size = 3 * self._base[0] if _decides(first) else self._call.batch.third
        third = self._with(0, size)
        confirm(first, self._recorded(third), self._sizes([third]))

    def _try_other_data(self, first: Recording, batch: Batch) -> None:
        """Look for numbers that depend on data and come out of a module kept whole.

        No rule sees them. The model runs on as many copies of the example's first row, and of its
        last one. This finds what the rows differ in; checked decisions on inputs may differ, and a
        model may refuse such a batch.

        Raises:
            KeepWholeError: if one is found.
        """
        if batch.size < 2 or _decides(first):
            return
        call = self._call
        for row in (0, batch.size - 1):
            leaves = repeated(call.leaves, batch, row, batch.recorded)
            try:
                other = record_once(call.model, leaves, call.layout, self._decisions, "real")
            except Exception:  # the model may refuse a batch of equal rows: then they tell nothing
                continue
            compare_data(first, other, self._sizes([self._base]))

    def _general(self, first: Recording) -> General:
        if self._call.batch is None:
            outputs, rows = output_leaves(first.outputs, None, (1, 1)), 1
        else:
            second, rows = self._made[_ROWS], self._base[0]
            outputs = output_leaves(
                first.outputs, second.recording.outputs, (rows, second.point[0])
            )
        elsewhere = self._call.leaves_at(self._made[_FAR].point) if self._call.marked else None
        sizes = list(zip(*(made.point for made in self._made.values()), strict=True))
        ranges = [(min(found), max(found)) for found in sizes]
        among = None if self._call.batch is None else ranges[0]
        marked = {
            axis.mark.name: found
            for axis, found in zip(self._axes, ranges, strict=True)
            if not axis.is_batch
        }
        return General(first, tuple(outputs), rows, elsewhere, marked, among)


def _decides(recording: Recording) -> bool:
    """Whether a recording holds for some data only."""
    return any(node.target is ops.check_value for node in recording.graph.nodes)
