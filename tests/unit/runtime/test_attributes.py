"""`fxpipe.runtime.attributes`: which attributes forwards leave tensors in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fxpipe.runtime.attributes import StageAttributes
from fxpipe.runtime.loss_reads import LeftTensors
from fxpipe.runtime.shells import Shells, Swap

HERE, LAST = (0, 0), (1, 1)


def _run(model: nn.Module, change: Callable[[], Any], times: int = 2) -> LeftTensors:
    seen, stage = LeftTensors(), StageAttributes(model, [""], [], Shells({}), HERE)
    stage.begin()
    for _ in range(times):
        stage.before_forward()
        change()
        stage.after_forward(seen)
    return seen


def test_tensors_anywhere_in_an_attribute() -> None:
    model = nn.Linear(2, 2)
    model.kept = {"all": [torch.zeros(1)]}  # type: ignore[assignment]

    def change() -> None:
        model.kept["all"] = [*model.kept["all"], torch.ones(1)]  # type: ignore[index, operator]

    seen = _run(model, change)
    first, *made = model.kept["all"]  # type: ignore[index, misc]
    assert [each.name for each in seen.others(LAST)] == ["kept"]
    assert all(seen.source(each, LAST) is not None for each in made)
    assert seen.source(first, LAST) is None
    assert seen.source(made[0], HERE) is None


def test_what_is_made_once_is_of_no_micro_batch() -> None:
    model = nn.Linear(2, 2)

    def change() -> None:
        if not hasattr(model, "table"):
            model.table = torch.ones(2)  # type: ignore[assignment]

    assert _run(model, change).source(model.table, LAST) is None  # type: ignore[arg-type]


def test_one_that_needs_a_gradient_never_is_right() -> None:
    model = nn.Linear(2, 2)

    def change() -> None:
        model.aux = model.weight.sum()  # type: ignore[assignment]

    found = _run(model, change, times=1).source(model.aux, LAST)  # type: ignore[arg-type]
    assert found is not None
    assert (found.path, found.name, found.stage) == ("", "aux", 0)


def test_buffers_that_are_replaced_and_parameters() -> None:
    model = nn.BatchNorm1d(2)

    def change() -> None:
        model(torch.rand(3, 2))  # changes its buffers in place
        model.running_var = torch.rand(2)
        model.alias = model.weight  # type: ignore[assignment]

    seen = _run(model, change)
    assert seen.source(model.running_var, LAST) is not None  # type: ignore[arg-type]
    assert seen.source(model.running_mean, LAST) is None  # type: ignore[arg-type]
    assert seen.source(model.weight, LAST) is None


def test_shells_give_it_to_the_user_s_module() -> None:
    model = nn.Linear(2, 2)
    shells = Shells({model: Swap()})
    shell: Any = shells.of(model)
    stage = StageAttributes(model, [""], [], shells, HERE)
    seen = LeftTensors()
    stage.before_forward()
    shell.aux = torch.ones(1)
    stage.after_forward(seen)
    assert model.aux is shell.aux
    made: Tensor = shell.aux
    shell.aux = torch.zeros(1)
    stage.after_forward(seen)
    assert model.aux is shell.aux
    assert seen.source(made, LAST) is not None
