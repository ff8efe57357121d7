"""Speech models of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.entry import Entry

SAMPLES = 400


def wav2vec2(**options: Any) -> nn.Module:
    """A tiny Wav2Vec2; layerdrop and SpecAugment are off unless an option switches them on."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    chosen: dict[str, Any] = {"layerdrop": 0.0, "apply_spec_augment": False, **options}
    return Wav2Vec2ForCTC(
        Wav2Vec2Config(
            vocab_size=12,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=4,
            num_attention_heads=2,
            conv_dim=(8, 8),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            feat_extract_norm="layer",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            ctc_loss_reduction="mean",
            **chosen,
        )
    )


def recordings(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Sounds of several lengths, padded, with the mask that says so."""
    g = torch.Generator().manual_seed(seed)
    sound = torch.randn(rows, SAMPLES, generator=g)
    lengths = torch.randint(SAMPLES // 2, SAMPLES + 1, (rows, 1), generator=g)
    mask = torch.arange(SAMPLES)[None] < lengths
    return (), {"input_values": sound * mask, "attention_mask": mask.long()}


ENTRIES = (Entry("Wav2Vec2", "transformers", wav2vec2, recordings),)
