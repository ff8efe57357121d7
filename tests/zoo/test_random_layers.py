"""Models that skip layers or mask inputs at random: what draws stays whole, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fxpipe
from fxpipe.errors import CaptureError
from tests.zoo.models.speech import recordings, wav2vec2


def _model(**options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return wav2vec2(**options).train()


def _loss(stages: int, **options: Any) -> Tensor:
    model = _model(**options)
    args, kwargs = recordings(4, 1)
    with fxpipe.compile(
        model,
        ["cpu"] * stages,
        chunks=2,
        example_args=args,
        example_kwargs=kwargs,
        costs="estimate",
        threads_per_rank=1,
    ) as pipe:
        torch.manual_seed(5)
        args, kwargs = recordings(5, 2)
        step = pipe.step(*args, loss_fn=lambda out, _: out.logits.square().mean(), **kwargs)
        return step.loss


def test_layerdrop_keeps_the_encoder_whole() -> None:
    args, kwargs = recordings(4, 1)
    (leaf,) = fxpipe.trace(_model(layerdrop=0.5), args, kwargs).leaves
    assert leaf.path == "wav2vec2.encoder"
    assert "skip_the_layer" in leaf.source
    assert leaf.reason == "its Python code depends on values of tensors"
    capture = fxpipe.trace(_model(layerdrop=0.5).eval(), args, kwargs)
    assert capture.leaves == ()


def test_layerdrop_draws_the_same_for_any_cut() -> None:
    assert torch.equal(_loss(1, layerdrop=0.5), _loss(2, layerdrop=0.5))


def test_spec_augment_is_refused_with_the_options_that_switch_it_off() -> None:
    args, kwargs = recordings(4, 1)
    model = _model(apply_spec_augment=True, mask_time_prob=0.3, mask_time_length=2)
    with pytest.raises(CaptureError, match=r"draws from random or numpy\.random") as caught:
        fxpipe.trace(model, args, kwargs)
    assert "in: module 'wav2vec2'" in str(caught.value)
    assert "wav2vec2.config.apply_spec_augment (now True)" in str(caught.value)
    model.config.apply_spec_augment = False
    assert fxpipe.trace(model, args, kwargs).leaves == ()
