"""The recordings of one call at the sizes that it is tried at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from fxpipe.capture.axes import Axis, Sizes
from fxpipe.capture.batch import Batch
from fxpipe.capture.call import Call
from fxpipe.capture.fallback import Decisions, FallbackError
from fxpipe.capture.formulas import Point
from fxpipe.capture.record import Recording, record
from fxpipe.errors import CaptureError

_BASE, _ROWS, _MORE, _FAR = "base", "rows", "more rows", "far"
_AGAIN: Final = 4
"""So often the last size of one axis is tried with further sizes of the others."""

_ROWS_OR_NOT: Final = (
    "If it takes rows in groups alone (the frames of a clip), every micro-batch must have whole "
    "groups: choose chunks so that the batch divides into such. If it takes no batches (the nodes of a "
    "graph are no rows, and a single sample without a batch dimension has none), its inputs must be "
    "given whole: in a pipeline by one micro-batch (chunks=1, or micro_batches=[(args, kwargs, target)] "
    "of step). If other inputs, or other dimensions, have the rows, split={'name': fxpipe.Split(dim)} "
    "says which."
)


class OtherRowsError(Exception):
    """The model fails on another number of rows than the example has: with `error`.

    `everywhere`: what to say if it fails on the example's, too.
    """

    def __init__(self, error: Exception, rows: int, batch: Batch) -> None:
        super().__init__(
            f"To record it for every batch size, the model was run on {rows} rows, where the example "
            f"(in a pipeline: a micro-batch) has {batch.size}. {_ROWS_OR_NOT}"
        )
        self.error = error
        self.everywhere = (
            f"The model fails on {rows} rows and on {batch.size} (in a pipeline: on micro-batches). If "
            f"it runs on the whole batch on its own, its rows are not what they seem. {_ROWS_OR_NOT}"
        )


@dataclass
class Made:
    """A recording, its sizes, and under which decisions it was made."""

    point: Point
    recording: Recording
    state: object


class Attempts:
    """The recordings of one call, each at the first of some sizes that the model takes.

    Args:
        call: the call; something of it may vary.
        decisions: what is learned while recording goes in here.
        mode: ``"real"`` or ``"fake"``.

    Attributes:
        base: the example's sizes.
    """

    def __init__(self, call: Call, decisions: Decisions, mode: str) -> None:
        self._call, self._decisions, self._mode = call, decisions, mode
        self._axes = call.axes
        self.base: Point = tuple(axis.size for axis in self._axes)
        self._made: dict[str, Made] = {}
        self._open: dict[str, list[Point]] = {}
        self._refused: dict[str, Exception] = {}
        if call.batch is not None:
            # first, so that a model which takes no batches is told apart from one that fails anyhow
            self.try_other_rows(call.batch)
        self._open[_BASE] = [self.base]
        for at, axis in enumerate(self._axes):
            if not axis.is_batch:
                self._open[f"other {at}"] = [self._with(at, size) for size in axis.others()]
                self._open |= {f"less {at}": [self._with(at, n)] for n in axis.less()}
                self._open |= {f"near {at} {n}": [self._with(at, n)] for n in axis.near()}

    # -- what is recorded ----------------------------------------------------------------------------

    @property
    def all(self) -> list[Made]:
        """All recordings there are."""
        return list(self._made.values())

    @property
    def others(self) -> list[Made]:
        """The recordings at other sizes than the example's."""
        return [made for key, made in self._made.items() if key != _BASE]

    @property
    def first(self) -> Recording:
        """The recording at the example's sizes."""
        return self._made[_BASE].recording

    @property
    def rows(self) -> Made | None:
        """The recording at another number of rows."""
        return self._made.get(_ROWS)

    @property
    def far(self) -> Made:
        """The recording at which every size is another, if dimensions are marked."""
        return self._made[_FAR]

    def sizes(self, points: Sequence[Point]) -> Sizes:
        """The example's sizes, and some more."""
        return Sizes(self._axes, (self.base, *points))

    def at_rows(self, rows: int) -> Point:
        """The example's sizes, but for the number of rows."""
        return self._with(0, rows)

    def _with(self, at: int, size: int) -> Point:
        return (*self.base[:at], size, *self.base[at + 1 :])

    # -- recording -----------------------------------------------------------------------------------

    def forget_first(self) -> None:
        """The recording at the example's sizes has been written into: it is to be made again."""
        self._made.pop(_BASE)

    def try_rows(self, *rows: int) -> None:
        """Record another number of rows from now on: the first that the model takes."""
        self._open[_ROWS] = [self.at_rows(n) for n in rows]
        self._made.pop(_ROWS, None)
        self._refused.pop(_ROWS, None)

    def add(self, point: Point) -> None:
        """Record one more number of rows from now on: the others told a wrong rule for some number."""
        self._open[f"{_MORE} {point[0]}"] = [point]

    def drop_added(self) -> None:
        """Record no more than before `add`."""
        for key in [key for key in self._open if key.startswith(_MORE)]:
            self._open.pop(key)
            self._made.pop(key, None)

    def try_other_rows(self, batch: Batch) -> None:
        """Record another number of rows than the example's, fewer if the model takes them.

        A model of clips takes multiples of their length alone: if it does not take half the rows, it
        takes twice as many. So does a graph that is given twice, though its nodes are no rows: more are
        tried only where all inputs have rows, and a graph's edges have none.
        """
        tensors = [leaf for leaf in self._call.leaves if isinstance(leaf, torch.Tensor)]
        have_rows = len(tensors) == sum(dim is not None for dim in batch.dims)
        more = (2 * batch.recorded,) if have_rows and batch.other < batch.recorded else ()
        self.try_rows(batch.other, *more)

    def make(self) -> None:
        """Record until all recordings rest on the same decisions.

        Raises:
            CaptureError: if the model cannot be recorded, or takes no other size of a marked dimension.
            OtherRowsError: if the model fails on another number of rows.
        """
        while True:
            state = self._decisions.state
            for key in list(self._open):
                self._record(key)
            if self._call.marked:
                if _FAR not in self._open:
                    self._open[_FAR] = self._far_points()
                self._record(_FAR)
            if self._decisions.state == state and all(made.state == state for made in self.all):
                return

    def recorded(self, point: Point) -> Recording:
        """A recording at other sizes.

        Raises:
            CaptureError: if the model cannot be recorded.
            OtherRowsError: if the model fails on another number of rows.
        """
        call = self._call
        try:
            leaves = call.leaves_at(point)
            return record(call.model, leaves, call.layout, self._decisions, self._mode)
        except (CaptureError, FallbackError):
            raise
        except Exception as error:
            if call.batch is None or point[1:] != self.base[1:] or point[0] == call.batch.size:
                raise
            raise OtherRowsError(error, point[0], call.batch) from error

    def at_first_rows(self, *rows: int) -> tuple[Point, Recording]:
        """Sizes and recording at the first of some numbers of rows that the model takes.

        Raises:
            CaptureError: if the model cannot be recorded.
            OtherRowsError: if it takes none of them: of the first one.
        """
        failed: OtherRowsError | None = None
        for n in rows:
            point = self.at_rows(n)
            try:
                return point, self.recorded(point)
            except OtherRowsError as error:
                failed = failed or error
        assert failed is not None
        raise failed

    def _record(self, key: str) -> None:
        """Record at the first sizes of a key that the model takes."""
        made = self._made.get(key)
        if made is not None and made.state == self._decisions.state:
            return
        self._made.pop(key, None)
        points = self._open[key]
        while points:
            try:
                recording = self.recorded(points[0])
            except CaptureError as error:
                if key not in (_BASE, _ROWS):
                    error.add_note(f"This was {self.sizes([points[0]]).difference(1)}.")
                raise
            except FallbackError:
                raise
            except Exception as error:
                if key == _BASE:
                    raise self._refused.get(_ROWS, error) from None
                if (
                    key != _ROWS or _ROWS not in self._refused
                ):  # of rows, the first is the one to tell
                    self._refused[key] = error
                points.pop(0)
                continue
            self._made[key] = Made(points[0], recording, self._decisions.state)
            return
        self._refuse(key)

    def _refuse(self, key: str) -> None:
        """Say which sizes the model does not take; those next to the example's need not be taken.

        Raises:
            CaptureError: if there is no size but the example's.
            OtherRowsError: if there is no number of rows but the example's.
        """
        error = self._refused[key]
        if key == _ROWS:
            raise error
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

    # -- sizes that all differ -----------------------------------------------------------------------

    def _far_points(self) -> list[Point]:
        """Points at which every size differs from the base, and from those tried alone if it can."""
        columns = [self._far_sizes(at, axis) for at, axis in enumerate(self._axes)]
        points = zip(*(column + column[-1:] * _AGAIN for column in columns), strict=False)
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
