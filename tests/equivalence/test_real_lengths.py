"""Models of libraries at many lengths and image sides, each with one recording."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.equivalence.compare import same
from tests.reference import run_eager_step

transformers = pytest.importorskip("transformers")
monai = pytest.importorskip("monai.networks.nets")

WORDS = {name: {1: "length"} for name in ("input_ids", "attention_mask", "labels")}
TWO = {
    "input_ids": {1: "source"},
    "attention_mask": {1: "source"},
    "decoder_input_ids": {1: "target"},
}
SIDES = {"x": {2: "16*height", 3: "16*width"}}

Batch = tuple[tuple[Any, ...], dict[str, Any]]


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(1, 50, (rows, length))


def padded(rows: int, length: int) -> Tensor:
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[::2, length - 2 :] = 0
    return mask


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=64, **rates
    )
    return transformers.GPT2LMHeadModel(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_ff=24, num_layers=2, num_heads=2, d_kv=8, dropout_rate=0.0
    )
    return transformers.T5ForConditionalGeneration(config)


def unet() -> nn.Module:
    features = (4, 4, 8, 8, 8, 4)
    return monai.BasicUNet(spatial_dims=2, in_channels=1, out_channels=2, features=features)


def words(rows: int, length: int) -> Batch:
    ids = tokens(rows, length)
    named = {"input_ids": ids, "attention_mask": padded(rows, length), "labels": ids}
    return (), {**named, "use_cache": False}


def two(rows: int, length: int) -> Batch:
    source = {"input_ids": tokens(rows, length), "attention_mask": padded(rows, length)}
    return (), {**source, "decoder_input_ids": tokens(rows, 2 * length - 3), "use_cache": False}


def images(rows: int, length: int) -> Batch:
    return (torch.randn(rows, 1, 16 * length, 32),), {}


def own_loss(output: Any, target: Any = None) -> Tensor:
    return output.loss


def of_logits(output: Any, target: Any = None) -> Tensor:
    logits = output if isinstance(output, Tensor) else output.logits
    return logits.float().square().mean()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Batch], Any, Any, Any]] = {
    "llama": (llama, words, own_loss, WORDS, (9, 5, 12)),
    "gpt2": (gpt2, words, own_loss, WORDS, (9, 5, 12)),
    "t5": (t5, two, of_logits, TWO, (6, 9)),
    "unet": (unet, images, of_logits, SIDES, (2, 4, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_at_every_length(name: str) -> None:
    make, batch, loss, dynamic, lengths = CASES[name]
    torch.manual_seed(0)
    model = make()
    eager = copy.deepcopy(model)
    with fxpipe.compile(
        model, ["cpu"] * 2, 2, dynamic=dynamic, costs="estimate", threads_per_rank=1
    ) as pipe:
        for length in lengths:
            args, kwargs = batch(4, length)
            wanted = run_eager_step(eager, args, kwargs, chunks=2, loss_fn=loss)
            same(pipe.step(*args, loss_fn=loss, **kwargs).loss, wanted.loss, f"at {length}")
        assert len(pipe._recordings._situations) == 1
    for (label, one), other in zip(model.named_parameters(), eager.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, msg=label)
