"""Time series: a forecaster of Hugging Face transformers, whose loss is that of a distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.entry import Entry

PAST, FUTURE, FEATURES = 20, 4, 2


def _series(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Values with gaps, and what is known of the times at which they were taken."""
    g = torch.Generator().manual_seed(seed)
    seen = torch.rand(rows, PAST, generator=g) < 0.8
    return (), {
        "past_values": torch.rand(rows, PAST, generator=g),
        "past_time_features": torch.randn(rows, PAST, FEATURES, generator=g),
        "past_observed_mask": seen.float(),
        "future_values": torch.rand(rows, FUTURE, generator=g),
        "future_time_features": torch.randn(rows, FUTURE, FEATURES, generator=g),
    }


def _time_series_transformer() -> nn.Module:
    from transformers import TimeSeriesTransformerConfig, TimeSeriesTransformerForPrediction

    return TimeSeriesTransformerForPrediction(
        TimeSeriesTransformerConfig(
            prediction_length=FUTURE,
            context_length=12,
            lags_sequence=[1, 2, 3, 8],
            num_time_features=FEATURES,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
        )
    )


ENTRIES = (
    Entry(
        "TimeSeriesTransformer",
        "transformers",
        _time_series_transformer,
        _series,
        most_lines=240,  # lags, scales and the distribution are the divided model's own code
    ),
)
