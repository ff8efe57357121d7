"""Recorded models nobody wrote for us: every stage program computes what eager does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.analysis.cuts import legal_cuts
from fxpipe.capture.trace import trace
from fxpipe.codegen.generate import generate
from fxpipe.portals.calls import ModuleCall
from fxpipe.portals.edges import link
from fxpipe.portals.steps import stage_steps
from tests.builders import plan_at
from tests.unit.codegen.exact import assert_cuts_are_exact

Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

pytestmark = pytest.mark.slow


def basic_unet() -> Example:
    from monai.networks.nets import BasicUNet

    features = (4, 4, 8, 8, 8, 4)
    model = BasicUNet(spatial_dims=2, in_channels=1, out_channels=2, features=features, dropout=0.1)
    return model, (torch.randn(2, 1, 32, 32),), {}


def residual_unet() -> Example:
    from monai.networks.nets import UNet

    sizes = {"channels": (4, 8, 8), "strides": (2, 2), "num_res_units": 2}
    model = UNet(spatial_dims=2, in_channels=1, out_channels=2, dropout=0.1, **sizes)
    return model, (torch.randn(2, 1, 16, 16),), {}


def attention_unet() -> Example:
    from monai.networks.nets import AttentionUnet

    sizes = {"channels": (4, 8, 8), "strides": (2, 2)}
    model = AttentionUnet(spatial_dims=2, in_channels=1, out_channels=2, **sizes)
    return model, (torch.randn(2, 1, 16, 16),), {}


def gpt2() -> Example:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    ids = torch.randint(0, 50, (2, 7))
    return transformers.GPT2LMHeadModel(config), (ids,), {"labels": ids}


def bert() -> Example:
    import transformers

    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    ids = torch.randint(0, 50, (2, 7))
    return transformers.BertModel(config), (ids,), {"attention_mask": torch.ones_like(ids)}


def t5() -> Example:
    import transformers

    config = transformers.T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    ids = torch.randint(0, 50, (2, 7))
    return transformers.T5ForConditionalGeneration(config), (ids,), {"labels": ids}


@pytest.mark.parametrize(
    "example", [basic_unet, residual_unet, attention_unet, gpt2, bert, t5], ids=lambda e: e.__name__
)
def test_every_legal_cut(example: Callable[[], Example]) -> None:
    """Two stages at each legal cut, three at a sample of pairs: outputs and gradients of eager."""
    assert_cuts_are_exact(*example())


def test_blocks_are_called_as_modules() -> None:
    """A cut between two blocks of a U-Net leaves all of them whole."""
    model, args, _ = basic_unet()
    capture = trace(model, args)
    start = next(n.name for n in capture.body if n.meta["path"].startswith("down_2"))
    plan = plan_at(capture, start)
    steps = stage_steps(capture, plan)
    called = [[s.span.path for s in stage if isinstance(s, ModuleCall)] for stage in steps]
    assert called == [
        ["conv_0", "down_1"],
        ["down_2", "down_3", "down_4", "upcat_4", "upcat_3", "upcat_2", "upcat_1"],
    ]
    (first, second) = generate(capture, plan, link(capture, plan), model)
    assert "self.down_1(" in first.source
    assert "final_conv = self.final_conv(" in second.source


def test_generating_again_gives_the_same_bytes() -> None:
    model, args, kwargs = t5()
    captures = [trace(model, args, kwargs) for _ in range(2)]
    middle = legal_cuts(captures[0])[len(legal_cuts(captures[0])) // 2]
    sources = []
    for capture in captures:
        plan = plan_at(capture, capture.body[middle].name)
        programs = generate(capture, plan, link(capture, plan), model)
        sources.append([program.source for program in programs])
    assert sources[0] == sources[1]
