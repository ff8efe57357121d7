"""Language models that predict the next token, of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import Entry

VOCABULARY = 40
LENGTH = 8
_SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _tokens(rows: int, seed: int, *, labels: bool = False, **more: Any) -> tuple[Any, Any]:
    """Token ids, padded at the end, and the mask that says so; padding has no label."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=g)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (rows, 1), generator=g)
    mask = torch.arange(LENGTH)[None] < lengths
    kwargs = {"input_ids": ids * mask, "attention_mask": mask.long(), **more}
    if labels:
        kwargs["labels"] = ids.masked_fill(~mask, -100)
    return (), kwargs


def _batch(**options: Any) -> Any:
    return lambda rows, seed: _tokens(rows, seed, **options)


def _gpt2(dropout: float = 0.0) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=4,
            n_head=2,
            n_embd=16,
            vocab_size=VOCABULARY,
            n_positions=32,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
        )
    )


def _gpt_neox() -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**_SIZES))


def _llama(**options: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=2, **options))


def _mistral() -> nn.Module:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=4))


def _qwen3() -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=4))


def _mixtral(**options: Any) -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(
        MixtralConfig(
            **_SIZES,
            num_key_value_heads=2,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=None,
            **options,
        )
    )


def _mamba() -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(
        MambaConfig(
            hidden_size=16,
            num_hidden_layers=4,
            state_size=4,
            vocab_size=VOCABULARY,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def _with_past(rows: int, seed: int) -> tuple[Any, Any]:
    """Tokens that continue a sequence whose keys and values are given."""
    from transformers import DynamicCache

    g = torch.Generator().manual_seed(100 + seed)

    def states() -> Tensor:
        return torch.randn(rows, 2, 3, 4, generator=g)

    past = DynamicCache()
    for layer in range(_SIZES["num_hidden_layers"]):
        past.update(states(), states(), layer)
    args, kwargs = _tokens(rows, seed, past_key_values=past)
    mask = kwargs["attention_mask"]
    kwargs["attention_mask"] = torch.cat([mask.new_ones(rows, 3), mask], 1)
    return args, kwargs


ENTRIES = (
    Entry(
        "GPT-2",
        "transformers",
        _gpt2,
        _batch(labels=True, use_cache=False),
        with_dropout=lambda: _gpt2(0.1),
    ),
    Entry("GPT-2 with cache", "transformers", _gpt2, _batch(labels=True)),
    Entry("GPT-NeoX", "transformers", _gpt_neox, _batch(labels=True)),
    Entry("Llama", "transformers", _llama, _batch(use_cache=False)),
    Entry("Llama with cache", "transformers", _llama, _batch()),
    Entry("Llama with past", "transformers", _llama, _with_past),
    Entry(
        "Llama, tied embeddings",
        "transformers",
        lambda: _llama(tie_word_embeddings=True),
        _batch(labels=True, use_cache=False),
    ),
    Entry("Mistral, sliding window", "transformers", _mistral, _batch()),
    Entry("Qwen3", "transformers", _qwen3, _batch(labels=True)),
    Entry("Mixtral", "transformers", _mixtral, _batch()),
    Entry(
        "Mixtral, router logits",
        "transformers",
        lambda: _mixtral(output_router_logits=True),
        _batch(labels=True),
        most_lines=300,  # the loss that balances the experts is code of the model's own forward
    ),
    Entry("Mamba", "transformers", _mamba, _batch(labels=True)),
)
