"""For which sizes a recording is known to hold: a model may do something else from some length on.

A recording with free dimensions was made at some sizes. Between those it is believed; for a size beyond
them the model is recorded once more, and compared. As each such recording reaches from half the size to
twice of it, this happens a few times in the life of a pipeline. Where fractions of a size are computed,
which Python rounds (``int(0.7 * length)``), every size is looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from fxpipe.errors import CaptureError
from fxpipe.ir.capture import Capture

Key = tuple[Hashable, ...]
Sizes = Mapping[str, int]


def covers(ranges: Mapping[str, tuple[int, int]], sizes: Sizes) -> bool:
    """Whether sizes lie among those recorded."""
    return all(
        name in ranges and ranges[name][0] <= size <= ranges[name][1]
        for name, size in sizes.items()
    )


@dataclass
class _Regime:
    """A recording, by its key, with the least and the largest of each size that it holds for."""

    key: Key
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    rounded: frozenset[str] = frozenset()
    looked_at: set[Hashable] = field(default_factory=set)

    def extend(self, capture: Capture) -> None:
        """The recording is this capture, too."""
        for name, (least, most) in capture.ranges.items():
            before = self.ranges.get(name, (least, most))
            self.ranges[name] = (min(least, before[0]), max(most, before[1]))
        self.rounded |= {name for sizes in capture.only_sizes for name in sizes}
        for sizes in capture.only_sizes:
            self.look_at(sizes)

    def look_at(self, sizes: Sizes) -> None:
        """It holds for these sizes, of which it computes fractions."""
        self.looked_at.add(self._fractions(sizes))

    def knows(self, sizes: Sizes) -> bool:
        """Whether what it computes fractions of was looked at."""
        return not self.rounded or self._fractions(sizes) in self.looked_at

    def _fractions(self, sizes: Sizes) -> Hashable:
        return tuple((name, sizes[name]) for name in sorted(self.rounded))


@dataclass(frozen=True)
class Choice:
    """The key of the recording for a call; `is_free`: whether sizes may be left free in it."""

    key: Key
    is_free: bool = True


class Regimes:
    """The recordings of calls that differ in free sizes alone."""

    def __init__(self) -> None:
        self._of: dict[Key, list[_Regime]] = {}
        self._alone: set[Key] = set()

    def choose(
        self,
        call: Key,
        sizes: Sizes,
        recorded: Callable[[], Capture],
        captures: Callable[[Key], Sequence[Capture]],
        holds: Callable[[Capture], bool],
    ) -> Choice:
        """The recording for a call.

        Args:
            call: all that recordings of such calls depend on, but for the free sizes.
            sizes: those, by name.
            recorded: records the model with the call's sizes.
            captures: the captures that are there for a key.
            holds: whether a capture says what the model does with the call's sizes.
        """
        regimes = self._of.get(call, [])
        if not sizes or not regimes:
            return Choice(call)
        for regime in regimes:
            if covers(regime.ranges, sizes) and regime.knows(sizes):
                return Choice(regime.key)
        alone = Choice((*call, tuple(sorted(sizes.items()))), is_free=False)
        if alone.key in self._alone:
            return alone
        rounding = next((regime for regime in regimes if covers(regime.ranges, sizes)), None)
        if rounding is not None and any(map(holds, captures(rounding.key))):
            rounding.look_at(sizes)
            return Choice(rounding.key)
        if rounding is not None:
            self._alone.add(alone.key)
            return alone
        return self._beyond(call, alone, recorded, captures)

    def _beyond(
        self,
        call: Key,
        alone: Choice,
        recorded: Callable[[], Capture],
        captures: Callable[[Key], Sequence[Capture]],
    ) -> Choice:
        """The recording for sizes that lie outside of all that were recorded."""
        regimes = self._of[call]
        try:
            capture = recorded()
        except CaptureError:  # it goes one way at some sizes near these, and another way at others
            self._alone.add(alone.key)
            return alone
        text = capture.fingerprint()
        for regime in regimes:
            if any(known.fingerprint() == text for known in captures(regime.key)):
                regime.extend(capture)
                return Choice(regime.key)
        return Choice((*call, len(regimes)))

    def note(self, call: Key, key: Key, capture: Capture) -> None:
        """A recording was made for a key that `choose` gave."""
        if not capture.ranges:
            return
        regimes = self._of.setdefault(call, [])
        regimes[:] = [regime for regime in regimes if regime.key != key]
        regime = _Regime(key)
        regime.extend(capture)
        regimes.append(regime)

    def clear(self) -> None:
        """Forget everything."""
        self._of.clear()
        self._alone.clear()
