"""`Updates`: what an update of a stage is told, and which parameters a stage may update on its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from torch import Tensor, nn

from fxpipe.runtime.leaves import Place
from fxpipe.runtime.stage import StageRunner


class Updates(Protocol):
    """An optimiser's step, taken for some parameters at a time and on the threads of their ranks."""

    @property
    def waits(self) -> bool:
        """Whether it does nothing before the step is over."""
        ...

    def update(self, parameters: Iterable[Tensor]) -> None:
        """Take the step for those of these parameters that the optimiser has."""
        ...


def own_parameters(runners: Sequence[StageRunner]) -> dict[int, list[Tensor]]:
    """Stage → the parameters whose gradients are there when the stage's backwards are done.

    They are those that no other stage reads, nor another copy of the stage: what these make of the
    gradients is added up when the step is over.

    Args:
        runners: all that take part in a step.
    """
    readers: dict[Tensor, dict[Place, None]] = {}
    copies = {runner.weights.place for runner in runners if runner.weights.is_copy}
    for runner in runners:
        for tensor in runner.weights.tensors():
            if isinstance(tensor, nn.Parameter):
                readers.setdefault(tensor, {})[runner.weights.place] = None
    found: dict[int, list[Tensor]] = {}
    for parameter, (place, *others) in readers.items():
        if not others and place not in copies:
            found.setdefault(place[0], []).append(parameter)
    return found
