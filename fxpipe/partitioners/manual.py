"""Cuts where the user says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fxpipe.analysis.cuts import describe, is_mode_switch, legal_cuts, why_illegal
from fxpipe.errors import IllegalPlanError, PartitionError
from fxpipe.partitioners.places import Places

if TYPE_CHECKING:
    from fxpipe.ir.capture import Capture


def manual_cuts(capture: Capture, cuts: Sequence[str]) -> tuple[int, ...]:
    """Positions of the places where the user wants stages to start, ascending.

    Args:
        capture: what is cut.
        cuts: module paths, ``path@n`` (call n of a module, from 0) or names of nodes, in any order. What
            comes first in an autocast or grad-mode region stands for the region.

    Raises:
        PartitionError: if a name means nothing here, two mean one place, or one the very start.
        IllegalPlanError: if the graph cannot be cut at some of them; every one is explained, with the
            nearest places where it can.
    """
    if isinstance(cuts, str):
        raise PartitionError(f"cuts is a sequence of names: write [{cuts!r}]")
    places, legal = Places(capture), legal_cuts(capture)
    found: dict[int, str] = {}
    for name in cuts:
        position = _around_regions(capture, places.position(name), legal)
        if position == 0:
            raise PartitionError(f"{name!r} is where the first stage starts anyway: leave it out")
        if position in found:
            raise PartitionError(f"{name!r} and {found[position]!r} are the same place: keep one")
        found[position] = name
    wrong = sorted(set(found) - set(legal))
    if wrong:
        faults = [_fault(capture, places, found[position], position, legal) for position in wrong]
        raise IllegalPlanError("the graph cannot be cut there:\n  • " + "\n  • ".join(faults))
    return tuple(sorted(found))


def _around_regions(capture: Capture, position: int, legal: Sequence[int]) -> int:
    """The same place; if nothing but the beginnings of regions lies between, the one before them.

    What comes first in a ``with torch.no_grad():`` begins with the region.
    """
    known, at = set(legal), position
    while at not in known and at > 1 and is_mode_switch(capture.body[at - 1]):
        at -= 1
    return at if at in known else position


def _fault(
    capture: Capture, places: Places, name: str, position: int, legal: tuple[int, ...]
) -> str:
    before, after = capture.body[position - 1], capture.body[position]
    earlier = [places.name(cut) for cut in legal if cut < position][-1:]
    later = [places.name(cut) for cut in legal if cut > position][:1]
    near = " or ".join(repr(place) for place in (*earlier, *later)) or "nowhere in this graph"
    return (
        f"{name!r}, between {describe(before)} and {describe(after)}: "
        f"{why_illegal(capture, position)}. The nearest places for a cut: {near}"
    )
