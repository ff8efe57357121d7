"""diffusers: denoising U-Nets, an autoencoder, a diffusion transformer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import Entry


def _unet2d(dropout: float = 0.0) -> nn.Module:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        dropout=dropout,
    )


def _unet2d_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    return (_images(g, rows, 3), _steps(g, rows)), {}


def _unet2d_condition() -> nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=4,
    )


def _unet2d_condition_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    length = torch.randint(1, 7, (rows, 1), generator=g)
    return (_images(g, rows, 4), _steps(g, rows)), {
        "encoder_hidden_states": torch.randn(rows, 6, 8, generator=g),
        "encoder_attention_mask": torch.arange(6) < length,
    }


def _autoencoder_kl() -> nn.Module:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(8, 16),
        norm_num_groups=4,
        sample_size=16,
    )


def _autoencoder_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (_images(torch.Generator().manual_seed(seed), rows, 3),), {}


def _dit() -> nn.Module:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        num_layers=3,
        norm_num_groups=4,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=1000,
    )
    for block in model.transformer_blocks:
        block.norm1.emb.class_embedder.dropout_prob = 0.0  # labels are dropped at random
    return model


def _dit_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 1000, (rows,), generator=g)
    return (_images(g, rows, 4, 8),), {"timestep": _steps(g, rows), "class_labels": labels}


def _images(g: torch.Generator, rows: int, channels: int, size: int = 16) -> Tensor:
    return torch.randn(rows, channels, size, size, generator=g)


def _steps(g: torch.Generator, rows: int) -> Tensor:
    return torch.randint(0, 1000, (rows,), generator=g)


ENTRIES = (
    Entry(
        "diffusers UNet2DModel",
        "diffusers",
        _unet2d,
        _unet2d_batch,
        with_dropout=partial(_unet2d, 0.2),
    ),
    Entry(
        "diffusers UNet2DConditionModel",
        "diffusers",
        _unet2d_condition,
        _unet2d_condition_batch,
        slow=True,
    ),
    Entry("diffusers AutoencoderKL", "diffusers", _autoencoder_kl, _autoencoder_batch),
    Entry("diffusers DiT", "diffusers", _dit, _dit_batch),
)
