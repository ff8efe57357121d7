"""`Believed`: for which numbers of rows a recording is known to hold.

A model may do something else with one row, or from some number of rows on. A recording was made with
some numbers; between those it is believed. At others the model is recorded once more and compared.
Fractions of the number of rows (``x.shape[0] // 2``) may be rounded otherwise than it seems: a recording
that computes such is believed for the numbers alone that it was compared at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Believed:
    """Ranges of numbers of rows.

    Args:
        rows: the least and the largest number recorded; None if all are the same to the recording.
        only: the numbers recorded, if nothing is believed between them.
    """

    def __init__(self, rows: tuple[int, int] | None, only: Sequence[int] = ()) -> None:
        self._ranges = None if rows is None else [(n, n) for n in only] or [rows]
        self._between = not only

    def __contains__(self, rows: int) -> bool:
        """Whether a number of rows lies between two that were recorded."""
        return self._ranges is None or any(low <= rows <= high for low, high in self._ranges)

    def add(self, rows: int, others: Iterable[Believed]) -> None:
        """The recording holds for one more number.

        What lies between it and the next one known is believed, unless nothing between is, or another
        recording has a number there.

        Args:
            rows: the number.
            others: of the other recordings of the same calls.
        """
        if self._ranges is None:
            return
        low, high = min(self._ranges, key=lambda known: _distance(known, rows))
        wider = (min(low, rows), max(high, rows))
        if not self._between or any(other.meets(wider) for other in others):
            self._ranges.append((rows, rows))
            return
        self._ranges.remove((low, high))
        self._ranges.append(wider)

    def meets(self, span: tuple[int, int]) -> bool:
        """Whether a number between two is known."""
        ranges = self._ranges or ()
        return any(low <= span[1] and span[0] <= high for low, high in ranges)


def _distance(known: tuple[int, int], rows: int) -> int:
    return max(known[0] - rows, rows - known[1])
