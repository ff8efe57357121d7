"""Recordings of a model at several sizes, made into one that holds for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from fxpipe import ops
from fxpipe.capture.attempts import Attempts, Made
from fxpipe.capture.axes import Sizes
from fxpipe.capture.batch import Batch, repeated
from fxpipe.capture.call import Call
from fxpipe.capture.fallback import (
    DecidesOtherwiseError,
    Decisions,
    KeepWholeError,
    RefusedError,
)
from fxpipe.capture.record import Recording, record, record_once
from fxpipe.capture.remedies import RESULT
from fxpipe.capture.results import output_leaves
from fxpipe.capture.second_run import check_second_run
from fxpipe.capture.unify import compare_data, confirm, is_certain, unify
from fxpipe.errors import CaptureError
from fxpipe.ir.signature import OutputLeaf

_ROUNDS: Final = 60
_RULES: Final = 3
"""So often a rule is looked for anew, when a number of rows does not follow the one found."""


@dataclass(frozen=True)
class General:
    """A recording that holds for every size, and its output leaves.

    Attributes:
        rows: of the recording; 1 if no input has rows.
        elsewhere: arguments' leaves of other sizes than the example's, to try the recording on; None
            if the batch alone is free.
        ranges: name of a marked dimension → its least and its largest recorded size.
        among: the least and the largest number of rows recorded; None if no input has rows.
        only_rows: see `Capture.only_rows`.
        only_sizes: see `Capture.only_sizes`.
    """

    recording: Recording
    outputs: tuple[OutputLeaf, ...]
    rows: int
    elsewhere: list[Any] | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    among: tuple[int, int] | None = None
    only_rows: tuple[int, ...] = ()
    only_sizes: tuple[Mapping[str, int], ...] = ()


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
        if not makes and not first.has_state:
            return first
        again = record(call.model, call.leaves, call.layout, decisions, mode)
        same = Sizes((), ((), ()))
        try:
            unify(first, [again], same)
            twice = partial(call.recorded_once, decisions, mode, runs=2)
            check_second_run(call.model, decisions, first, twice, same)
        except KeepWholeError as reason:
            decisions.learn(reason, is_layer=False)
        else:
            return first


class _Generalising:
    """The recordings of one call, made again until all of them agree under the same decisions."""

    def __init__(self, call: Call, decisions: Decisions, mode: str) -> None:
        self._call, self._decisions, self._mode = call, decisions, mode
        self._attempts = Attempts(call, decisions, mode)
        self._few_differ: KeepWholeError | None = None
        self._tried = 0
        self._is_wrong_rule = False

    def run(self) -> General:
        """The recording that holds for every size."""
        for _ in range(_ROUNDS):
            self._attempts.make()
            state = self._decisions.state
            try:
                first = self._unified()
            except KeepWholeError as reason:
                self._attempts.forget_first()
                if self._is_wrong_rule:  # the one for more numbers of rows may be another
                    self._is_wrong_rule = False
                    continue
                self._attempts.drop_added()
                if not self._takes_more_rows(reason):
                    self._learn(reason)
                continue
            if self._few_differ is not None:  # more rows agree: it is their number that decides
                self._attempts.forget_first()
                self._learn(self._few_differ)
                continue
            if self._decisions.state == state:
                return self._general(first)
        raise CaptureError("the recordings at different sizes never agree")

    def _takes_more_rows(self, reason: KeepWholeError) -> bool:
        """Go from fewer rows than the example's to more, where that was not tried yet.

        Some of the rows may decide on their data otherwise than all of them; repeated ones decide alike.
        If it was no decision that is checked, the reason stands, unless what is found with more rows is
        that data are the reason.
        """
        other, base = self._attempts.rows, self._attempts.base
        if other is None or other.point[0] >= base[0]:
            return False
        self._few_differ = None if isinstance(reason, DecidesOtherwiseError) else reason
        self._attempts.try_rows(2 * base[0])
        return True

    def _learn(self, reason: KeepWholeError) -> None:
        """Keep a module whole. If fewer rows than the example's did not agree, they are tried again."""
        self._decisions.learn(reason, is_layer=False)
        if self._few_differ is not None and self._call.batch is not None:
            self._few_differ = None
            self._attempts.try_other_rows(self._call.batch)

    # -- comparing -----------------------------------------------------------------------------------

    def _unified(self) -> Recording:
        first, others = self._attempts.first, self._attempts.others
        sizes = self._attempts.sizes([made.point for made in others])
        self._compare_results(first, others)
        unify(first, [made.recording for made in others], sizes)
        if not self._call.marked and not is_certain(first):
            self._confirm(first)
        if self._mode == "real" and self._decisions.leaves and self._call.batch is not None:
            self._try_other_data(first, self._call.batch)
        self._try_second_run(first)
        return first

    def _compare_results(self, first: Recording, others: Sequence[Made]) -> None:
        """Refuse results with as many tensors as rows: no module that stays whole is of any help.

        Raises:
            CaptureError: if there are some.
        """
        one, base = len(first.outputs), self._attempts.base
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
        check_second_run(
            call.model, self._decisions, first, again, self._attempts.sizes([self._attempts.base])
        )

    def _confirm(self, first: Recording) -> None:
        assert self._call.batch is not None
        # whole copies of the example decide as it does, and a model of clips takes them
        copies = (3 + self._tried) * self._attempts.base[0]
        tried = (copies,) if _decides(first) else (self._call.batch.third + self._tried, copies)
        point, recording = self._attempts.at_first_rows(*tried)
        try:
            confirm(first, recording, self._attempts.sizes([point]))
        except KeepWholeError:
            if self._tried < _RULES:
                self._tried += 1
                self._is_wrong_rule = True
                self._attempts.add(point)
            raise

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
            compare_data(first, other, self._attempts.sizes([self._attempts.base]))

    def _general(self, first: Recording) -> General:
        call, attempts = self._call, self._attempts
        other, base = attempts.rows, attempts.base
        if other is None:
            outputs, rows = output_leaves(first.outputs, None, (1, 1)), 1
        else:
            rows = base[0]
            outputs = output_leaves(first.outputs, other.recording.outputs, (rows, other.point[0]))
        elsewhere = call.leaves_at(attempts.far.point) if call.marked else None
        sizes = list(zip(*(made.point for made in attempts.all), strict=True))
        ranges = [(min(found), max(found)) for found in sizes]
        among = None if call.batch is None else ranges[0]
        rounded = [
            at
            for at, axis in enumerate(call.axes)
            if any(formula.may_round(at, axis.mark.step) for formula in first.formulas.values())
        ]
        only_rows: tuple[int, ...] = ()
        if rounded and call.axes[rounded[0]].is_batch:
            only_rows = tuple(sorted(set(sizes[rounded.pop(0)])))
        only_sizes = [
            {call.axes[at].mark.name: made.point[at] for at in rounded} for made in attempts.all
        ]
        marked = {
            axis.mark.name: found
            for axis, found in zip(call.axes, ranges, strict=True)
            if not axis.is_batch
        }
        return General(
            first,
            tuple(outputs),
            rows,
            elsewhere,
            marked,
            among,
            only_rows,
            tuple(only_sizes) if rounded else (),
        )


def _decides(recording: Recording) -> bool:
    """Whether a recording holds for some data only."""
    return any(node.target is ops.check_value for node in recording.graph.nodes)
