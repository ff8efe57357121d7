"""Vector clocks (Lamport 1978, Mattern 1989): which deeds are ordered, and which only happen to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(eq=False)
class Actor:
    """A stream or a host thread: it does one deed after another, and comes to know of others' deeds.

    `clock` holds, for each actor, how many of its deeds are certain to be done before the next one
    of this actor.
    """

    name: str
    deeds: int = 0
    clock: dict[Actor, int] = field(default_factory=dict)

    def act(self, label: str = "") -> Moment:
        """The next deed of this actor."""
        self.deeds += 1
        self.clock[self] = self.deeds
        return Moment(self, self.deeds, label)

    def learn(self, clock: Clock) -> None:
        """From now on, whatever `clock` knows of is done before."""
        for actor, deeds in clock.items():
            if deeds > self.clock.get(actor, 0):
                self.clock[actor] = deeds

    def knows(self, moment: Moment) -> bool:
        """Whether a deed is done before the next one of this actor."""
        return self.clock.get(moment.actor, 0) >= moment.number

    def snapshot(self) -> Clock:
        """What this actor knows now."""
        return dict(self.clock)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Moment:
    """A deed: the `number`-th of its actor."""

    actor: Actor
    number: int
    label: str = ""

    def __str__(self) -> str:
        return f"{self.label} on {self.actor.name}"


Clock: TypeAlias = Mapping[Actor, int]
