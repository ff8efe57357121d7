from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from fxpipe.codegen.generate import generate
from fxpipe.ir.stage import RandomScope
from fxpipe.portals.edges import link
from tests.builders import build_capture, load_stages, plan_at, run_stages


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(F.dropout(x, 0.5, self.training)) + torch.rand_like(x)


class Noisy(nn.Module):
    """One noisy block, called three times, and a draw of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = Noise()

    def forward(self, x):
        for _ in range(3):
            x = self.noise(x)
        return F.dropout(x, 0.5, self.training)


def generated(*starts: str):
    model = Noisy()
    capture = build_capture(model, torch.randn(8))
    plan = plan_at(capture, *starts)
    graph = link(capture, plan)
    return model, capture, graph, generate(capture, plan, graph, model)


def test_scopes_inside_whole_calls() -> None:
    *_, (only,) = generated()
    assert only.random == (
        RandomScope("noise.drop", 0, is_leaf=True),
        RandomScope("noise", 0, is_leaf=False),
    )
    assert only.needs_keys  # the model's own draw
    assert 'with self.keyed("#0", 0):' in only.source


def test_calls_are_counted_from_the_first_of_the_stage() -> None:
    *_, (first, second) = generated("dropout_1")
    assert first.random[1] == RandomScope("noise", 0, is_leaf=False)
    assert second.random == (
        RandomScope("noise.drop", 1, is_leaf=True),
        RandomScope("noise", 1, is_leaf=False),
    )
    assert not first.needs_keys


def test_a_divided_module_draws_under_its_own_keys() -> None:
    """The cut runs through the second call: its functions are keyed by hand, its layers by scope."""
    *_, (first, second) = generated("noise_drop_1")
    assert first.needs_keys
    assert 'with self.keyed("noise#1", 0):' in first.source
    assert first.random == (
        RandomScope("noise.drop", 0, is_leaf=True),
        RandomScope("noise", 0, is_leaf=False),
    )
    assert 'with self.keyed("noise#1", 1):' in second.source
    assert second.random == (
        RandomScope("noise.drop", 1, is_leaf=True),
        RandomScope("noise", 2, is_leaf=False),
    )


def test_keys_are_asked_for_in_order() -> None:
    model, capture, graph, programs = generated("noise_drop_1")
    asked: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def keyed(scope: str, draw: int) -> Iterator[None]:
        asked.append((scope, draw))
        yield

    stages = load_stages(programs, model, capture, keyed=keyed)
    run_stages(stages, programs, graph, [torch.randn(8)])
    assert asked == [("noise#1", 0), ("noise#1", 1), ("#0", 0)]


def test_nothing_is_random_in_eval_mode() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)).eval()
    capture = build_capture(model, torch.randn(2))
    plan = plan_at(capture)
    (only,) = generate(capture, plan, link(capture, plan), model)
    assert only.random == ()
    assert not only.needs_keys
