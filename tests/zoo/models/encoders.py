"""Text encoders of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.zoo.entry import Batch, Entry

VOCABULARY = 40
LENGTH = 8
_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}


def _undropped(dropout: float = 0.0) -> dict[str, Any]:
    return {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}


def _batch(*, classes: int = 0, **more: Any) -> Batch:
    """Padded token ids with their mask; one label a row if there are classes."""

    def batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(1, VOCABULARY, (rows, LENGTH), generator=g)
        lengths = torch.randint(LENGTH // 2, LENGTH + 1, (rows, 1), generator=g)
        mask = torch.arange(LENGTH)[None] < lengths
        kwargs = {"input_ids": ids * mask, "attention_mask": mask.long(), **more}
        if classes:
            kwargs["labels"] = torch.randint(0, classes, (rows,), generator=g)
        return (), kwargs

    return batch


def _bert_classifier(dropout: float = 0.0) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(**_SIZES, **_undropped(dropout), classifier_dropout=dropout, num_labels=3)
    )


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**_SIZES, **_undropped(), attn_implementation="eager"))


def _albert() -> nn.Module:
    from transformers import AlbertConfig, AlbertModel

    return AlbertModel(AlbertConfig(**_SIZES, **_undropped(), embedding_size=8))


def _distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return DistilBertForMaskedLM(
        DistilBertConfig(
            dim=16,
            hidden_dim=32,
            n_layers=4,
            n_heads=2,
            vocab_size=VOCABULARY,
            max_position_embeddings=16,
            dropout=0.0,
            attention_dropout=0.0,
        )
    )


def _deberta() -> nn.Module:
    from transformers import DebertaV2Config, DebertaV2Model

    return DebertaV2Model(
        DebertaV2Config(
            **_SIZES,
            **_undropped(),
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["p2c", "c2p"],
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_biased_input=False,
        )
    )


def _perceiver() -> nn.Module:
    from transformers import PerceiverConfig, PerceiverForMaskedLM

    return PerceiverForMaskedLM(
        PerceiverConfig(
            num_latents=4,
            d_latents=16,
            d_model=16,
            num_blocks=2,
            num_self_attends_per_block=2,
            num_self_attention_heads=2,
            num_cross_attention_heads=2,
            attention_probs_dropout_prob=0.0,
            vocab_size=VOCABULARY,
            max_position_embeddings=LENGTH,
        )
    )


def _perceiver_batch(rows: int, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same as for the others; its argument is called like one of a pipeline's step."""
    args, kwargs = _batch()(rows, seed)
    return args, {"inputs": kwargs.pop("input_ids"), **kwargs}


ENTRIES = (
    Entry(
        "BERT, classification",
        "transformers",
        _bert_classifier,
        _batch(classes=3),
        with_dropout=lambda: _bert_classifier(0.1),
    ),
    Entry(
        "BERT, hidden states and attentions",
        "transformers",
        _bert,
        _batch(output_hidden_states=True, output_attentions=True),
    ),
    Entry("ALBERT", "transformers", _albert, _batch()),
    Entry("DistilBERT", "transformers", _distilbert, _batch()),
    Entry("DeBERTa-v2", "transformers", _deberta, _batch()),
    Entry("Perceiver", "transformers", _perceiver, _perceiver_batch),
)
