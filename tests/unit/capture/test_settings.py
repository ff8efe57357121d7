"""Forwards that compute under other settings of torch than the run began with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fxpipe.capture.settings import Settings
from fxpipe.capture.trace import trace
from fxpipe.errors import CaptureError
from tests.unit.capture import small
from tests.unit.capture.agree import assert_agrees

X = torch.randn(4, 3, 4, generator=torch.Generator().manual_seed(0))

Context = Callable[[], AbstractContextManager[object]]


@contextmanager
def in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def surely() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


CONTEXTS: dict[str, Context] = {
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "default dtype": in_double,
    "kept for the backward": lambda: saved_tensors_hooks(torch.Tensor.bfloat16, torch.Tensor.float),
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "deterministic": surely,
}


class Attends(nn.Module):
    """Attention, and what takes the default dtype, under other settings."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.layer, self.context = nn.Linear(4, 4), context

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        with self.context():
            h = scaled_dot_product_attention(h, h, h) * torch.full((4,), 0.1)
        return self.layer(h.float())


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", CONTEXTS)
def test_the_module_stays_whole(name: str, mode: str) -> None:
    model = small.Chain(small.Mlp(), Attends(CONTEXTS[name]), small.Mlp())
    capture = trace(model, (X,), mode=mode)
    (leaf,) = capture.leaves
    assert leaf.path == "parts.1"
    assert name in leaf.reason
    assert leaf.operation.endswith("with self.context():")
    assert_agrees(capture, model, (X,))


@pytest.mark.parametrize("name", CONTEXTS)
def test_in_the_model_s_own_forward_it_is_refused(name: str) -> None:
    with pytest.raises(CaptureError, match="set this before the model is called") as found:
        trace(Attends(CONTEXTS[name]), (X,), verify=False)
    assert name in str(found.value)


class Around(Attends):
    """Calls a module under other settings: those are the caller's."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.inner = small.Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.context():
            return self.inner(x)


def test_the_module_that_sets_them_is_kept_whole_not_those_that_it_calls() -> None:
    model = nn.Sequential(small.Mlp(), Around(CONTEXTS["mkldnn"]))
    assert [leaf.path for leaf in trace(model, (X,)).leaves] == ["1"]


class LeavesThem(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        torch.backends.cuda.enable_flash_sdp(False)
        result = x * torch.ones(4)
        torch.backends.cuda.enable_flash_sdp(True)
        torch.set_default_dtype(torch.float32)
        return result


def test_a_run_that_is_stopped_leaves_no_setting_behind() -> None:
    before = Settings()
    with pytest.raises(CaptureError, match="default dtype"):
        trace(LeavesThem(), (X,))
    assert before.changed() is None


def test_settings_that_hold_around_the_call_are_no_matter() -> None:
    with sdpa_kernel(SDPBackend.MATH), CONTEXTS["kept for the backward"]():
        assert not trace(nn.Sequential(Attends(CONTEXTS["sdpa_kernel"])), (X,)).leaves


def test_where_tensors_are_kept_for_the_backward_is_no_matter() -> None:
    assert not trace(Attends(save_on_cpu), (X,)).leaves
