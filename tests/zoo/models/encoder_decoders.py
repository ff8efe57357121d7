"""Encoder–decoder models of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.entry import Entry

VOCABULARY = 40
LENGTH = 8
TARGET_LENGTH = 6
_TOKENS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_SIZES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "dropout": 0.0,
}


def _labels(rows: int, g: torch.Generator) -> torch.Tensor:
    labels = torch.randint(3, VOCABULARY, (rows, TARGET_LENGTH), generator=g)
    lengths = torch.randint(2, TARGET_LENGTH + 1, (rows, 1), generator=g)
    return labels.masked_fill(torch.arange(TARGET_LENGTH)[None] >= lengths, -100)


def _translation(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=g)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (rows, 1), generator=g)
    mask = torch.arange(LENGTH)[None] < lengths
    kwargs = {"input_ids": ids * mask, "attention_mask": mask.long()}
    return (), {**kwargs, "labels": _labels(rows, g)}


def _transcription(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    spectrum = torch.randn(rows, 8, 32, generator=g)
    return (), {"input_features": spectrum, "labels": _labels(rows, g)}


def _t5(dropout: float = 0.0) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            **_TOKENS,
            d_model=16,
            d_ff=32,
            d_kv=8,
            num_layers=2,
            num_heads=2,
            dropout_rate=dropout,
        )
    )


def _bart() -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(
        BartConfig(**_TOKENS, **_SIZES, max_position_embeddings=16, forced_eos_token_id=2)
    )


def _whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            **_TOKENS,
            **_SIZES,
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=16,
            begin_suppress_tokens=None,
            suppress_tokens=None,
        )
    )


ENTRIES = (
    Entry("T5", "transformers", _t5, _translation, with_dropout=lambda: _t5(0.1)),
    Entry("BART", "transformers", _bart, _translation),
    Entry("Whisper", "transformers", _whisper, _transcription),
)
