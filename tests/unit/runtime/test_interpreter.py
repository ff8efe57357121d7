from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fxpipe.ir.action import Action
from fxpipe.runtime.backend import Cancelled
from fxpipe.runtime.backends.inline import InlineTransport
from fxpipe.runtime.instructions import Executable, prepare
from fxpipe.runtime.interpreter import run_rank
from fxpipe.runtime.record import Record
from fxpipe.schedules.gpipe import gpipe
from fxpipe.schedules.lower import lower
from tests.conformance.harness import build
from tests.conformance.networks import Chain
from tests.unit.runtime.stages import chain, runners


def made(stages: int, functions: list[Callable[..., Any]] | None = None) -> Executable:
    graph, programs = chain(stages)
    each = runners(graph, programs, functions)
    return prepare(lower(gpipe(stages, stages, 1), graph), [each])


class Explained(SimpleNamespace):
    def explain(self, error: BaseException, action: Action) -> None:
        error.add_note(f"during {action}")


def step(executable: Executable) -> Any:
    """As little of a step as the interpreter looks at."""
    return Explained(
        transport=InlineTransport(executable.routes),
        record=Record(len(executable.ranks)),
        keeps_graph=False,
    )


def test_a_rank_yields_what_it_waits_for() -> None:
    executable = made(2)
    state = step(executable)
    waits = run_rank(1, executable.ranks[1], state)
    assert str(next(waits)) == "recv[a:v0:0→1]0"
    assert str(next(waits)) == "recv[a:v0:0→1]0"


def test_a_failed_transport_ends_the_rank() -> None:
    executable = made(2)
    state = step(executable)
    state.transport.cancel()
    with pytest.raises(Cancelled):
        next(run_rank(0, executable.ranks[0], state))


def test_errors_are_explained() -> None:
    executable = made(1)
    with pytest.raises(AttributeError) as caught:
        next(run_rank(0, executable.ranks[0], step(executable)), None)  # a step without frames
    assert caught.value.__notes__ == ["during 0F0"]


def test_actions_are_labelled_for_the_profiler() -> None:
    rig = build(Chain(), torch.randn(8, 8), stages=2)

    def loss(output: Tensor, target: None) -> Tensor:
        return output.mean()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        rig.step(torch.randn(8, 8), chunks=2, loss_fn=loss)
    names = [event.name for event in profile.events() if event.name.startswith("fxpipe ")]
    assert sorted(names) == sorted(
        f"fxpipe {stage}{kind}{m}" for stage in range(2) for kind in "FB" for m in range(2)
    )
