"""Models of MONAI, diffusers, transformers and torch.nn, tiny, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.capture.trace import trace
from tests.unit.capture.agree import assert_agrees

Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

IDS = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(0))
FULL = torch.ones(2, 7, dtype=torch.long)
PADDED = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
IMAGE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))

CONFIGS: dict[str, tuple[str, str, dict[str, int]]] = {
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2},
    ),
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            "vocab_size": 64,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    ),
    "bert": (
        "BertConfig",
        "BertForMaskedLM",
        {
            "vocab_size": 64,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
        },
    ),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": 64,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
    ),
    "vit": (
        "ViTConfig",
        "ViTForImageClassification",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "image_size": 16,
            "patch_size": 4,
        },
    ),
}


def transformer(name: str, **inputs: Any) -> Call:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    config, model, sizes = CONFIGS[name]
    return getattr(transformers, model)(getattr(transformers, config)(**sizes)), (), inputs


def monai(name: str, size: int, **options: Any) -> Call:
    nets = pytest.importorskip("monai.networks.nets")
    model = getattr(nets, name)(
        spatial_dims=2, in_channels=3, out_channels=2, dropout=0.1, **options
    )
    return model, (torch.randn(2, 3, size, size),), {}


def diffusion_unet() -> Call:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.UNet2DModel(
        sample_size=16,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model, (IMAGE, torch.tensor([3, 7])), {}


def torch_transformer(batch_first: bool) -> Call:
    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=batch_first)
    shapes = ((2, 5, 16), (2, 4, 16)) if batch_first else ((5, 2, 16), (4, 2, 16))
    return model, tuple(torch.randn(shape) for shape in shapes), {}


MODELS: dict[str, Callable[[], Call]] = {
    "UNet": lambda: monai("UNet", 16, channels=(4, 8, 16), strides=(2, 2), num_res_units=2),
    "BasicUNet": lambda: monai("BasicUNet", 32, features=(4, 4, 8, 8, 16, 4)),
    "AttentionUnet": lambda: monai("AttentionUnet", 16, channels=(4, 8, 16), strides=(2, 2)),
    "UNet2DModel": diffusion_unet,
    "nn.Transformer": lambda: torch_transformer(True),
    "nn.Transformer, sequence first": lambda: torch_transformer(False),
    "gpt2": lambda: transformer("gpt2", input_ids=IDS),
    "gpt2, labels": lambda: transformer("gpt2", input_ids=IDS, labels=IDS),
    "gpt2, no cache": lambda: transformer("gpt2", input_ids=IDS, use_cache=False),
    "gpt2, full mask": lambda: transformer("gpt2", input_ids=IDS, attention_mask=FULL),
    "gpt2, padded": lambda: transformer("gpt2", input_ids=IDS, attention_mask=PADDED, labels=IDS),
    "gpt2, hidden states": lambda: transformer("gpt2", input_ids=IDS, output_hidden_states=True),
    "llama": lambda: transformer("llama", input_ids=IDS),
    "llama, padded": lambda: transformer("llama", input_ids=IDS, attention_mask=PADDED, labels=IDS),
    "bert": lambda: transformer("bert", input_ids=IDS),
    "bert, padded": lambda: transformer("bert", input_ids=IDS, attention_mask=PADDED, labels=IDS),
    "t5": lambda: transformer("t5", input_ids=IDS, decoder_input_ids=IDS),
    "t5, padded": lambda: transformer("t5", input_ids=IDS, attention_mask=PADDED, labels=IDS),
    "vit": lambda: transformer("vit", pixel_values=IMAGE),
    "vit, labels": lambda: transformer("vit", pixel_values=IMAGE, labels=torch.tensor([0, 1])),
}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("name", MODELS)
def test_model_is_captured_exactly(name: str, mode: str, training: bool) -> None:
    model, args, kwargs = MODELS[name]()
    model.train(training)
    capture = trace(model, args, kwargs, mode=mode)
    assert capture.leaves == ()
    assert_agrees(capture, model, args, kwargs)
    assert_agrees(capture, model, args, kwargs, rows=3)


def test_blocks_can_be_called_as_modules_again() -> None:
    model, args, kwargs = transformer("gpt2", input_ids=IDS, use_cache=False)
    spans = trace(model, args, kwargs).spans
    assert [span.path for span in spans if span.fixed] == []
    blocks = [span for span in spans if span.path in ("transformer.h.0", "transformer.h.1")]
    assert [span.outputs for span in blocks] == [
        {blocks[0].nodes[-1]: ()},
        {blocks[1].nodes[-1]: ()},
    ]


def test_blocks_with_a_cache_can_be_called_again() -> None:
    model, args, kwargs = transformer("gpt2", input_ids=IDS)
    spans = trace(model, args, kwargs).spans
    assert not any(span.fixed for span in spans)
    changed = {span.path: span.changed for span in spans if span.changed}
    assert set(changed) == {
        f"transformer.h.{layer}{part}" for layer in (0, 1) for part in ("", ".attn")
    }
