"""A decoder of x-transformers and torch's own Transformer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo.entry import Entry


def _x_decoder() -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=4, heads=2, attn_dim_head=64, rotary_pos_emb=True)
    return TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers)


def _x_decoder_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 11, (rows, 1), generator=g)
    return (torch.randint(0, 40, (rows, 10), generator=g),), {"mask": torch.arange(10) < lengths}


def _x_relative() -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=4, heads=2, attn_dim_head=16, shift_tokens=1, rel_pos_bias=True)
    return TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers)


def _transformer(dropout: float = 0.0) -> nn.Module:
    return nn.Transformer(16, 2, 2, 2, 32, dropout=dropout, batch_first=True)


def _transformer_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    padding = torch.arange(6) >= torch.randint(1, 7, (rows, 1), generator=g)
    source = torch.randn(rows, 6, 16, generator=g)
    target = torch.randn(rows, 5, 16, generator=g)
    return (source, target), {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(5),
        "tgt_is_causal": True,
        "src_key_padding_mask": padding,
        "memory_key_padding_mask": padding,
    }


ENTRIES = (
    Entry("x-transformers decoder", "x-transformers", _x_decoder, _x_decoder_batch),
    Entry("x-transformers, relative positions", "x-transformers", _x_relative, _x_decoder_batch),
    Entry(
        "torch.nn.Transformer",
        "torch",
        _transformer,
        _transformer_batch,
        with_dropout=partial(_transformer, 0.2),
    ),
)
