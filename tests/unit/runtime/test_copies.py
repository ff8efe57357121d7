from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.errors import ScheduleError
from fxpipe.ir.stage import StageProgram
from fxpipe.runtime.copies import bring_together, require_can_be_copied, require_one_loss
from fxpipe.runtime.weights import StageWeights
from tests.unit.runtime.stages import as_it_is, program

HERE, ELSEWHERE = torch.device("cpu"), torch.device("meta")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))


STATISTICS = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")


def check(model: nn.Module, of: StageProgram, *, defers_norms: bool = True) -> None:
    weights = StageWeights(model, of, {}, as_it_is, device=HERE, defers_norms=defers_norms)
    require_can_be_copied(model, of, weights)


def stage(*paths: str, **options: Any) -> StageProgram:
    modules = {path.replace(".", "_") or "root": path for path in paths}
    return program(0, ["x"], ["y"], modules=modules, **options)


def test_statistics_that_wait_for_the_end_are_no_hindrance() -> None:
    check(Model(), stage("norm", "linear", buffers=STATISTICS))
    with pytest.raises(ScheduleError, match=r"norm\.running_mean.*use batch_norm='deferred'"):
        check(Model(), stage("norm", buffers=STATISTICS), defers_norms=False)


def test_what_passes_from_micro_batch_to_micro_batch_is() -> None:
    tensors = {"seen": "seen"}
    with pytest.raises(
        ScheduleError, match=r"stage 0 .* each micro-batch changes seen, which"
    ) as told:
        check(Model(), stage("linear", tensors=tensors, buffers=("seen",)))
    assert "deferred" not in str(told.value)
    with pytest.raises(ScheduleError, match="Python's, NumPy's or a module's own generator"):
        check(Model(), stage("linear", draws_python=True))


def test_compiled_modules_have_their_own_parameters() -> None:
    model = Model()
    model.linear = torch.jit.script(model.linear)
    model.add_module("empty", torch.jit.script(nn.ReLU()))
    check(model, stage("norm", "empty"))
    with pytest.raises(ScheduleError, match="the compiled module 'linear'"):
        check(model, stage("linear"))


def test_a_loss_for_several_last_stages() -> None:
    trained, fixed, bare = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), nn.MSELoss()
    require_one_loss(trained, [HERE])
    with pytest.raises(ScheduleError, match="the loss has parameters"):
        require_one_loss(trained, [HERE, HERE])
    require_one_loss(fixed, [HERE, HERE])
    with pytest.raises(ScheduleError, match="the loss has tensors"):
        require_one_loss(fixed, [HERE, ELSEWHERE])
    require_one_loss(bare, [HERE, ELSEWHERE])


def test_results_are_brought_together() -> None:
    here, there = torch.ones(2, requires_grad=True), torch.ones(2, device=ELSEWHERE)
    step: Any = SimpleNamespace(
        losses=[here, None, there],
        outputs=[[here, 3], [(there, "word"), there]],
        input_grads=[[here, None], [None, (here, None)]],
    )
    bring_together(step, last=ELSEWHERE, first=HERE)
    assert [None if loss is None else loss.device for loss in step.losses] == [
        ELSEWHERE,
        None,
        ELSEWHERE,
    ]
    (moved, number), (pair, same) = step.outputs
    assert (moved.device, moved.requires_grad, moved.grad_fn) == (ELSEWHERE, True, None)
    assert (number, pair[0], pair[1], same) == (3, there, "word", there)
    assert step.input_grads[0] == [here, None]
    assert step.input_grads[1][1][0] is here
