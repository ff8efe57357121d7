"""Models of other libraries and of our examples, tiny, with random weights; each must run as in eager.

Each entry builds the model and a batch; `loss` turns the model's output into a scalar (a mean over
rows, so that the batch's loss is the weighted sum of the micro-batches').
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Example:
    """A model, a batch for it and a loss."""

    name: str
    model: Callable[[float], nn.Module]
    """Dropout probability → the model."""
    batch: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    loss: Callable[[Any, Any], Tensor]
    tied: bool = False
    """Whether a parameter may be read by several stages (sums then agree up to rounding)."""
    batch_norm: bool = False
    tags: frozenset[str] = field(default_factory=frozenset)


def _mean_sine(output: Any, target: Any = None) -> Tensor:
    if isinstance(output, Tensor):
        return output.sin().mean()
    for key in ("loss", "sample", "logits", "last_hidden_state"):
        value = getattr(output, key, None)
        if value is not None:
            return value if key == "loss" else value.sin().mean()
    raise TypeError(f"no loss for {type(output)}")


def _images(channels: int, size: int) -> Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]:
    def batch(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        g = torch.Generator().manual_seed(100 + rows)
        return (torch.randn(rows, channels, size, size, generator=g),), {}

    return batch


def _ids(
    vocabulary: int, length: int, *, mask: bool = False, labels: bool = False
) -> Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]:
    def batch(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        g = torch.Generator().manual_seed(200 + rows)
        ids = torch.randint(0, vocabulary, (rows, length), generator=g)
        kwargs: dict[str, Any] = {"input_ids": ids}
        if mask:
            lengths = torch.randint(length // 2, length + 1, (rows, 1), generator=g)
            kwargs["attention_mask"] = (torch.arange(length)[None] < lengths).long()
        if labels:
            kwargs["labels"] = torch.randint(0, vocabulary, (rows, length), generator=g)
        return (), kwargs

    return batch


def _monai_unet(dropout: float) -> nn.Module:
    from monai.networks.nets import UNet

    return UNet(2, 1, 2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1, dropout=dropout)


def _monai_basic_unet(dropout: float) -> nn.Module:
    from monai.networks.nets import BasicUNet

    return BasicUNet(2, 1, 2, features=(4, 4, 8, 8, 16, 4), dropout=dropout)


def _monai_attention_unet(dropout: float) -> nn.Module:
    from monai.networks.nets import AttentionUnet

    return AttentionUnet(2, 1, 2, channels=(4, 8, 16), strides=(2, 2), dropout=dropout)


def _unet2d(dropout: float) -> nn.Module:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        dropout=dropout,
    )


def _unet2d_batch(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(300 + rows)
    return (
        torch.randn(rows, 3, 16, 16, generator=g),
        torch.randint(0, 1000, (rows,), generator=g),
    ), {}


def _gpt2(dropout: float) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=3,
            n_head=2,
            n_embd=16,
            vocab_size=50,
            n_positions=32,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
        )
    )


def _llama(dropout: float) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=50,
            max_position_embeddings=32,
            attention_dropout=dropout,
        )
    )


def _bert(dropout: float) -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            vocab_size=50,
            max_position_embeddings=32,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        ),
        add_pooling_layer=False,
    )


def _t5(dropout: float) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            d_model=16,
            d_ff=32,
            d_kv=8,
            num_layers=2,
            num_heads=2,
            vocab_size=50,
            decoder_start_token_id=0,
            dropout_rate=dropout,
        )
    )


def _t5_batch(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    _, kwargs = _ids(50, 10, mask=True)(rows)
    g = torch.Generator().manual_seed(400 + rows)
    return (), {**kwargs, "labels": torch.randint(0, 50, (rows, 6), generator=g)}


def _vit(dropout: float) -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(
        ViTConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            image_size=16,
            patch_size=4,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        ),
        add_pooling_layer=False,
    )


def _vit_batch(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (images,), _ = _images(3, 16)(rows)
    return (), {"pixel_values": images}


def _torch_transformer(dropout: float) -> nn.Module:
    return nn.Transformer(16, 2, 2, 2, 32, dropout=dropout, batch_first=True)


def _torch_transformer_batch(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    g = torch.Generator().manual_seed(500 + rows)
    return (torch.randn(rows, 6, 16, generator=g), torch.randn(rows, 5, 16, generator=g)), {}


def _with_dropout(model: nn.Module, dropout: float) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = dropout
    return model


def _our_unet(dropout: float) -> nn.Module:
    from examples.models.unet import UNet

    return _with_dropout(UNet(1, 4), dropout)


def _amoebanet(dropout: float) -> nn.Module:
    from examples.models.amoebanet import AmoebaNetD

    return AmoebaNetD(3, 16, classes=10)


def _resnet(dropout: float) -> nn.Module:
    from examples.models.resnet import resnet101

    return resnet101(classes=10)


EXAMPLES: dict[str, Example] = {
    example.name: example
    for example in (
        Example("monai_unet", _monai_unet, _images(1, 16), _mean_sine),
        Example("monai_basic_unet", _monai_basic_unet, _images(1, 32), _mean_sine),
        Example(
            "monai_attention_unet",
            _monai_attention_unet,
            _images(1, 16),
            _mean_sine,
            batch_norm=True,
        ),
        Example("diffusers_unet2d", _unet2d, _unet2d_batch, _mean_sine),
        Example("gpt2", _gpt2, _ids(50, 8, mask=True, labels=True), _mean_sine, tied=True),
        Example("llama", _llama, _ids(50, 8, labels=True), _mean_sine),
        Example("bert", _bert, _ids(50, 8, mask=True), _mean_sine),
        Example("t5", _t5, _t5_batch, _mean_sine, tied=True),
        Example("vit", _vit, _vit_batch, _mean_sine),
        Example("torch_transformer", _torch_transformer, _torch_transformer_batch, _mean_sine),
        Example("unet", _our_unet, _images(3, 64), _mean_sine),
        Example("amoebanet", _amoebanet, _images(3, 224), _mean_sine, batch_norm=True),
        Example("resnet101", _resnet, _images(3, 64), _mean_sine, batch_norm=True),
    )
}
