"""What held up each computation of a timeline: its own rank, or a value on its way from another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fxpipe.ir.action import Compute, Direction, Payload, Transfer, Update
from fxpipe.ir.stage import StageGraph
from fxpipe.ir.timeline import Span, Timeline
from fxpipe.schedules.depend import MAKES, Result, needs
from fxpipe.simulator.wires import Parcel, parcel_of

_CARRIED: Final = {Payload.ACTIVATION: Result.OUTPUT, Payload.GRADIENT: Result.INPUT_GRAD}
"""What a transfer carries: what its source stage has made."""


class Blockers:
    """The computations and updates of a timeline, each with the one that it started after.

    ::

        rank 0   0F0 0F1 . . . . .       1F0 started after 0F0, when x had arrived; 1F1 after 1F0,
        link        [x] [x]              for its rank was busy
        rank 1   . . . . 1F0 1F1

    A simulated timeline says what a rank waited for, and when a link took a value: that of a fused cell
    at the cell's end, that of a busy link when the value before was through. A measured one does not:
    there the last to end of all that came into question counts.
    """

    def __init__(self, timeline: Timeline, graph: StageGraph) -> None:
        self._graph = graph
        self._rows = [timeline.work_spans(rank) for rank in range(timeline.num_ranks)]
        self._places = {
            (rank, span.action): place
            for rank, row in enumerate(self._rows)
            for place, span in enumerate(row)
        }
        self._makers = {
            (result, span.action.stage, span.action.micro_batch): span
            for row in self._rows
            for span in row
            if isinstance(span.action, Compute)
            for result in MAKES[span.action.kind]
        }
        self._waits: dict[tuple[int, float], Transfer] = {}
        """Rank, moment → the receive for which it waited until then."""
        self._sends: dict[Parcel, Span] = {}
        self._earlier: dict[Parcel, Span] = {}
        """What the same link took right before."""
        self._note_transfers(timeline)

    def _note_transfers(self, timeline: Timeline) -> None:
        links: dict[tuple[int, int], Span] = {}
        for span in timeline.spans:
            action = span.action
            if not isinstance(action, Transfer):
                continue
            if action.direction is Direction.RECV:
                self._waits[span.rank, span.end] = action
                continue
            parcel, link = parcel_of(action), (span.rank, self._target(action))
            self._sends[parcel] = span
            if link in links:
                self._earlier[parcel] = links[link]
            links[link] = span

    def _target(self, send: Transfer) -> int:
        """The rank that a value goes to; -1 if it makes nothing of it."""
        made = self._makers.get((_CARRIED[send.payload], send.target, send.micro_batch))
        return -1 if made is None else made.rank

    def last(self) -> Span | None:
        """The last to end; None if there is nothing."""
        spans = [span for row in self._rows for span in row]
        return max(spans, key=lambda span: span.end, default=None)

    def of(self, span: Span) -> Span | None:
        """What a computation or update started after; None if it waited for nothing."""
        assert not isinstance(span.action, Transfer)
        place = self._places[span.rank, span.action]
        found = [self._rows[span.rank][place - 1]] if place else []
        if found and found[0].end >= span.start:
            return found[0]
        wait = self._waits.get((span.rank, span.start))
        sender = None if wait is None else self._sender(wait, span.start)
        if sender is not None:
            return sender
        found += self._needed(span.action)
        return max(found, key=lambda one: one.end, default=None)

    def _needed(self, action: Compute | Update) -> Iterator[Span]:
        """The computations whose results an action needs."""
        if isinstance(action, Compute):
            stage, m = action.stage, action.micro_batch
            recomputed = (Result.ACTIVATIONS, stage, m) in self._makers
            for result, source in needs(action, self._graph, recomputed=recomputed):
                if (result, source, m) in self._makers:
                    yield self._makers[result, source, m]

    def _sender(self, transfer: Transfer, arrival: float) -> Span | None:
        """What a value that came at `arrival` started after: the cell that made it.

        Or, where its link was busy, what the value before it on that link started after, and so on.
        """
        maker = self._maker(transfer)
        while maker is not None:
            send = self._sends.get(parcel_of(transfer))
            taken = arrival if send is None else send.start
            cell = self._ended(maker, taken)
            earlier = self._earlier.get(parcel_of(transfer))
            if cell is not None or earlier is None or earlier.end < taken:
                return cell or maker
            assert isinstance(earlier.action, Transfer)
            transfer = earlier.action
            maker = self._maker(transfer)
        return None

    def _maker(self, transfer: Transfer) -> Span | None:
        key = (_CARRIED[transfer.payload], transfer.source, transfer.micro_batch)
        return self._makers.get(key)

    def _ended(self, maker: Span, moment: float) -> Span | None:
        """The action of the maker's cell that ended at a moment; None if none did."""
        row = self._rows[maker.rank]
        assert not isinstance(maker.action, Transfer)
        place = self._places[maker.rank, maker.action]
        while row[place].end < moment:
            if place + 1 == len(row) or row[place + 1].start > row[place].end:
                return None
            place += 1
        return row[place] if row[place].end == moment else None
