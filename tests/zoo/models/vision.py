"""Image models of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.entry import Batch, Entry


def _images(size: int, *, classes: int = 0, dense: bool = False, **more: Any) -> Batch:
    """Images; with classes a label for each, or one for each pixel."""

    def batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        g = torch.Generator().manual_seed(seed)
        kwargs: dict[str, Any] = {"pixel_values": torch.randn(rows, 3, size, size, generator=g)}
        if classes:
            shape = (rows, size, size) if dense else (rows,)
            kwargs["labels"] = torch.randint(0, classes, shape, generator=g)
        return (), {**kwargs, **more}

    return batch


def _vit(dropout: float = 0.0) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=4,
            num_attention_heads=2,
            image_size=16,
            patch_size=4,
            num_labels=3,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def _swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(
        SwinConfig(
            image_size=32,
            patch_size=2,
            embed_dim=8,
            depths=[2, 2],
            num_heads=[2, 2],
            window_size=4,
            drop_path_rate=0.0,
            num_labels=3,
        )
    )


def _segformer() -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return SegformerForSemanticSegmentation(
        SegformerConfig(
            num_encoder_blocks=3,
            depths=[1, 1, 1],
            sr_ratios=[4, 2, 1],
            hidden_sizes=[8, 8, 16],
            patch_sizes=[7, 3, 3],
            strides=[4, 2, 2],
            num_attention_heads=[1, 2, 2],
            mlp_ratios=[2, 2, 2],
            decoder_hidden_size=16,
            drop_path_rate=0.0,
            classifier_dropout_prob=0.0,
            num_labels=3,
        )
    )


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(
        ConvNextConfig(
            num_stages=3,
            hidden_sizes=[8, 8, 16],
            depths=[1, 2, 1],
            patch_size=2,
            image_size=16,
            drop_path_rate=0.0,
            num_labels=3,
        )
    )


def _clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    layers = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    tokens = {
        "vocab_size": 40,
        "max_position_embeddings": 16,
        "bos_token_id": 1,
        "eos_token_id": 39,
    }
    return CLIPModel(
        CLIPConfig(
            text_config={**layers, **tokens},
            vision_config={**layers, "image_size": 16, "patch_size": 4},
            projection_dim=8,
        )
    )


def _pairs(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Captions of several lengths, each ended by the last token, and as many images."""
    g = torch.Generator().manual_seed(seed)
    _, kwargs = _images(16)(rows, seed)
    ids = torch.randint(3, 39, (rows, 8), generator=g)
    lengths = torch.randint(3, 8, (rows, 1), generator=g)
    ids.scatter_(1, lengths, 39)
    mask = torch.arange(8)[None] <= lengths
    return (), {**kwargs, "input_ids": ids, "attention_mask": mask.long(), "return_loss": True}


ENTRIES = (
    Entry("ViT", "transformers", _vit, _images(16, classes=3), with_dropout=lambda: _vit(0.1)),
    Entry("Swin", "transformers", _swin, _images(32, classes=3)),
    Entry("SegFormer", "transformers", _segformer, _images(32, classes=3, dense=True)),
    Entry("ConvNeXt", "transformers", _convnext, _images(16, classes=3)),
    Entry("CLIP", "transformers", _clip, _pairs, joins=False),
)
