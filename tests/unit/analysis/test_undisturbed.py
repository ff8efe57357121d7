import random

import numpy as np
import pytest
import torch
from torch import nn

from fxpipe.analysis.undisturbed import devices_of, undisturbed


class Busy(nn.Module):
    """Changes everything that a forward can change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("replaced", torch.zeros(2))
        self.calls = 0
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = x
        self.seen.append(x)
        self.replaced = self.replaced + 1
        random.random()
        np.random.rand()
        return self.norm(x) + torch.rand(3)


def test_nothing_of_a_run_is_left() -> None:
    model = Busy().eval()
    replaced, mean = model.replaced, model.norm.running_mean.clone()
    draws = torch.get_rng_state(), random.getstate(), np.random.get_state()[2]
    with undisturbed(model, training=True):
        assert model.norm.training
        model(torch.randn(4, 3))
        assert model.calls == 1
        assert len(model.seen) == 1
    assert not model.training
    assert not model.norm.training
    assert model.calls == 0
    assert not hasattr(model, "last")
    assert model.seen == []
    assert model.replaced is replaced
    assert torch.equal(model.norm.running_mean, mean)
    assert int(model.norm.num_batches_tracked) == 0
    assert torch.equal(torch.get_rng_state(), draws[0])
    assert (random.getstate(), np.random.get_state()[2]) == draws[1:]


def test_flags_that_the_user_set_on_parts_hold_inside() -> None:
    model = Busy().train()
    model.norm.eval()
    with undisturbed(model, training=True):
        assert not model.norm.training


def test_a_failure_inside_is_cleaned_up_too() -> None:
    model = Busy().train()
    with pytest.raises(RuntimeError, match="mat1 and mat2"), undisturbed(model, training=True):
        nn.Linear(2, 2)(model(torch.randn(4, 3)))
    assert model.calls == 0
    assert int(model.norm.num_batches_tracked) == 0


def test_models_on_the_meta_device_are_taken_too() -> None:
    with undisturbed(nn.BatchNorm1d(3, device="meta"), training=True):
        pass


def test_only_accelerators_need_to_be_waited_for() -> None:
    assert devices_of(nn.Linear(2, 2), torch.zeros(1), "text") == ()
    assert devices_of(nn.Linear(2, 2, device="meta")) == ()
