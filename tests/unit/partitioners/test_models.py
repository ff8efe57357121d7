"""Plans of models that nobody wrote for us, as the recorder takes them."""

import warnings
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from fxpipe.analysis.cuts import legal_cuts
from fxpipe.analysis.estimate import estimate
from fxpipe.analysis.profile import profile
from fxpipe.capture.trace import trace
from fxpipe.ir.capture import Capture
from fxpipe.ir.cost import CostProfile
from fxpipe.partitioners.assemble import anchor_keys
from fxpipe.partitioners.chain import stage_seconds
from fxpipe.partitioners.check import check_plan
from fxpipe.partitioners.follow import follow
from fxpipe.partitioners.linear import chain_of
from fxpipe.partitioners.partition import partition
from fxpipe.portals.edges import link

Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def unet() -> Call:
    nets = pytest.importorskip("monai.networks.nets")
    features = (8, 8, 16, 16, 16, 8)
    model = nets.BasicUNet(spatial_dims=2, in_channels=1, out_channels=2, features=features)
    return model, (torch.randn(2, 1, 32, 32),), {}


def gpt2() -> Call:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=3,
        n_embd=32,
        n_head=2,
        vocab_size=100,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    ids = torch.randint(0, 100, (2, 16))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    return transformers.GPT2LMHeadModel(config), (), given


def t5() -> Call:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        vocab_size=100,
        decoder_start_token_id=0,
    )
    ids = torch.randint(0, 100, (2, 12))
    model = transformers.T5ForConditionalGeneration(config)
    return model, (), {"input_ids": ids, "labels": ids[:, :8], "use_cache": False}


MODELS: list[Callable[[], Call]] = [unet, gpt2, t5]


@cache
def prepared(make: Callable[[], Call]) -> tuple[Call, Capture, CostProfile]:
    torch.manual_seed(0)
    model, args, kwargs = make()
    model.train()
    capture = trace(model, args, kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # decisions on a mask are no nodes to guess at
        return (model, args, kwargs), capture, estimate(capture, model)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("make", MODELS)
def test_stages_are_as_even_as_the_indivisible_parts_allow(
    make: Callable[[], Call], stages: int
) -> None:
    _, capture, costs = prepared(make)
    plan = partition(capture, costs, stages)
    check_plan(capture, plan)
    assert link(capture, plan).num_stages == stages
    names = [node.name for node in capture.body]
    cuts = [i for i, (a, b) in enumerate(pairwise(names), 1) if plan.stages[a] != plan.stages[b]]
    work = chain_of(capture, costs, None).work
    ends = [0, *legal_cuts(capture), len(work)]
    largest = max(sum(work[a:b]) for a, b in pairwise(ends))
    busiest = max(stage_seconds(chain_of(capture, costs, None), cuts))
    assert busiest <= 1.01 * (sum(work) / stages + largest)


@pytest.mark.parametrize("make", MODELS)
def test_weights_stay_where_they_are_from_training_to_evaluation(make: Callable[[], Call]) -> None:
    (model, args, kwargs), capture, costs = prepared(make)
    plan = partition(capture, costs, 3)
    model.eval()
    try:
        with torch.no_grad():
            second = trace(model, args, kwargs)
    finally:
        model.train()
    found = follow(plan, capture, second)
    check_plan(second, found)
    keys = anchor_keys(second)
    placed = {key: found.stages[node] for node, some in keys.items() for key in some}
    assert {key: placed[key] for key in plan.anchors if key in placed} == {
        key: stage for key, stage in plan.anchors.items() if key in placed
    }
    assert set(plan.anchors) <= set(placed)


@pytest.mark.parametrize("make", MODELS)
def test_measured_and_counted_bytes_agree(make: Callable[[], Call]) -> None:
    (model, args, kwargs), capture, costs = prepared(make)
    measured = profile(capture, model, args, kwargs, repeats=1)
    assert measured.parameter_bytes == costs.parameter_bytes
    total = sum(cost.saved_bytes for cost in measured.nodes.values())
    assert total > 0
    # Kernels on real data may save a little more or less than their fakes (masks, statistics).
    assert sum(c.saved_bytes for c in costs.nodes.values()) == pytest.approx(total, rel=0.05)
