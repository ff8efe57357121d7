"""What a forward found: modes come back for the time of a rerun, changed tensors are told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.errors import ExecutionError
from fxpipe.runtime.since_forward import AsInForward


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())


def test_modes_are_those_of_the_forward_inside_and_the_callers_outside() -> None:
    net = model()
    net[1].eval()
    found = AsInForward(net, ())
    net.eval()
    net[1].train()
    with found.again():
        assert [module.training for module in net] == [True, False, True]
        assert net.training
    assert [module.training for module in net] == [False, True, False]
    assert not net.training


def test_modes_come_back_after_an_error() -> None:
    net = model()
    found = AsInForward(net, ())
    net.eval()
    with pytest.raises(ZeroDivisionError), found.again():
        raise ZeroDivisionError
    assert not net[2].training


def test_a_tensor_that_was_changed_is_named() -> None:
    net = model()
    found = AsInForward(net, ())
    with torch.no_grad():
        net[1].running_mean.add_(1)
    with pytest.raises(ExecutionError, match=r"1\.running_mean"), found.again():
        pass


def test_what_the_forward_writes_itself_may_change_under_any_name() -> None:
    net = model()
    net.register_buffer("alias", net[1].running_mean)
    found = AsInForward(net, {"alias"})
    net[1].running_mean.add_(1)
    with found.again():
        pass
