"""What can be wrong with a program of streams, and the list of what was found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of hazard."""

    READ_BEFORE_WRITE = "read may come before the write"
    WRITE_BEFORE_READ = "write may come before an earlier read or write"
    REUSED = "memory may be used again while it is still read (record_stream is missing)"
    MIXED_DEVICES = "operands on several devices (a transfer is missing)"
    UNRECORDED = "wait for an event that was never recorded"
    HOST_READ = "host read without synchronising"
    RACING_THREADS = "two host threads issue work whose order nothing decides"


@dataclass(frozen=True)
class Hazard:
    """One fault: what was being done, and what it may overtake."""

    kind: Kind
    what: str
    other: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}" + (f" / {self.other}" if self.other else "")


class Report:
    """The hazards found, each once."""

    def __init__(self) -> None:
        self.hazards: Counter[Hazard] = Counter()

    def add(self, kind: Kind, what: object, other: object = "") -> None:
        """Note a hazard."""
        self.hazards[Hazard(kind, str(what), str(other))] += 1

    @property
    def kinds(self) -> set[Kind]:
        """The kinds found."""
        return {hazard.kind for hazard in self.hazards}

    def __bool__(self) -> bool:
        return bool(self.hazards)

    def __str__(self) -> str:
        lines = [f"{hazard}  ({count}×)" for hazard, count in self.hazards.items()]
        return "\n".join(lines) or "no hazard"
