from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fxpipe.capture.watch import Watch, storage_key


def watch() -> Watch:
    return Watch(lambda operator, arguments: None)


def test_draws_are_counted_per_call() -> None:
    x = torch.randn(4)
    with watch() as seen:
        with seen.measure() as first:
            F.dropout(x)
            torch.rand(3)
        with seen.measure() as second:
            x + 1
            F.dropout(x, training=False)
            torch.rand(3, generator=torch.Generator())
    assert (first.draws, second.draws) == (2, 0)


def test_attention_draws_only_with_dropout() -> None:
    q = torch.randn(1, 1, 2, 4)
    with watch() as seen:
        with seen.measure() as without:
            F.scaled_dot_product_attention(q, q, q)
        with seen.measure() as with_dropout:
            F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    assert (without.draws, with_dropout.draws) == (0, 1)


def test_writes_are_seen_through_views_and_data() -> None:
    x, y = torch.zeros(4), torch.zeros(4)
    with watch() as seen, seen.measure() as effects:
        x[:2].add_(1)
        y.data.mul_(2)
        x + y
    assert effects.writes == {storage_key(x), storage_key(y)}


def test_running_statistics_are_written_in_training_only() -> None:
    norm = nn.BatchNorm1d(2)
    with watch() as seen:
        with seen.measure() as training:
            norm(torch.randn(3, 2))
        norm.eval()
        with seen.measure() as evaluation:
            norm(torch.randn(3, 2))
    assert {storage_key(buffer) for buffer in norm.buffers()} == training.writes
    assert evaluation.writes == set()


def test_inner_measures_are_not_added_to_outer_ones() -> None:
    with watch() as seen, seen.measure() as outer, seen.measure() as inner:
        torch.rand(1)
    assert (outer.draws, inner.draws) == (0, 1)


def test_what_was_seen_can_be_forgotten() -> None:
    x = torch.zeros(1)
    with watch() as seen, seen.measure() as effects:
        x.uniform_()
        seen.forget()
    assert (effects.draws, effects.writes) == (0, set())


def test_views_share_a_storage_key() -> None:
    x = torch.zeros(4)
    assert storage_key(x) == storage_key(x[1:]) != storage_key(x.clone())
    assert storage_key(x.to_sparse()) != storage_key(x)
