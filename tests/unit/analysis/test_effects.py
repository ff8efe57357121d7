import torch
from torch import nn

from fxpipe.analysis.effects import effects, is_mutating, is_random
from tests.builders import build_capture


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5)
    ).train()


def test_effects_name_what_writes_draws_and_which_buffers_change() -> None:
    found = effects(build_capture(model(), torch.randn(3, 4)))
    assert found.mutating == ("_1", "_2")
    assert found.random == ("_3",)
    assert found.buffers["1.num_batches_tracked"] == ("_1",)


def test_a_model_in_eval_mode_changes_and_draws_nothing_but_in_place() -> None:
    capture = build_capture(model().eval(), torch.randn(3, 4))
    assert [is_mutating(node) for node in capture.body] == [False, False, True, False]
    assert not any(is_random(node) for node in capture.body)
