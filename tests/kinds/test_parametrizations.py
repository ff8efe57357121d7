"""Weights that are computed from others: norms, constraints, adapters, pruning."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.cases.blocks import WIDTH, Block
from tests.exact import Kind, vectors
from tests.kinds.check import assert_works, each


class Symmetric(nn.Module):
    """A parametrization of one's own."""

    def forward(self, weight: Tensor) -> Tensor:
        return (weight + weight.T) / 2

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight.triu() * 2 - weight.diag().diag()


def weight_norm(old: bool) -> nn.Module:
    wrap: Any = nn.utils.weight_norm if old else parametrizations.weight_norm
    return nn.Sequential(
        wrap(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), wrap(nn.Linear(WIDTH, WIDTH), dim=1)
    )


def spectral_norm(old: bool) -> nn.Module:
    wrap: Any = nn.utils.spectral_norm if old else parametrizations.spectral_norm
    return nn.Sequential(
        Block(), wrap(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), wrap(nn.Linear(WIDTH, WIDTH)), Block()
    )


def orthogonal() -> nn.Module:
    return nn.Sequential(
        Block(), parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), Block()
    )


def own() -> nn.Module:
    model = nn.Sequential(Block(), Block(), Block())
    for block in model:
        parametrize.register_parametrization(block.layer, "weight", Symmetric())
    parametrize.register_parametrization(model[1].layer, "bias", nn.Softplus())
    return model


def on_a_block() -> nn.Module:
    """A parametrized module that is no layer of torch."""

    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(WIDTH) * 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.weight) + x @ self.weight

    model = nn.Sequential(Block(), Scales(), Scales(), Block())
    for layer in (model[1], model[2]):
        parametrize.register_parametrization(layer, "weight", Symmetric())
    return model


def cached() -> nn.Module:
    """A model that computes its weights once per forward."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = own()

        def forward(self, x: Tensor) -> Tensor:
            with parametrize.cached():
                return self.inner(x) + self.inner[0](x)

    return nn.Sequential(Block(), Cached(), Block())


def pruned() -> nn.Module:
    model = nn.Sequential(Block(), Block(), Block())
    for block in model:
        prune.l1_unstructured(block.layer, "weight", amount=0.3)
    return model


class Tied(nn.Module):
    """Two layers that share one parametrized weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.between, self.two = nn.Linear(WIDTH, WIDTH), Block(), Block()
        parametrizations.weight_norm(self.one)

    def forward(self, x: Tensor) -> Tensor:
        h = self.between(torch.tanh(self.one(x)))
        return self.two(nn.functional.linear(h, self.one.weight))


KINDS = {
    "weight norm": Kind(lambda: weight_norm(False), vectors(WIDTH)),
    "weight norm by hooks": Kind(lambda: weight_norm(True), vectors(WIDTH)),
    "spectral norm": Kind(lambda: spectral_norm(False), vectors(WIDTH)),
    "spectral norm by hooks": Kind(lambda: spectral_norm(True), vectors(WIDTH)),
    "orthogonal": Kind(orthogonal, vectors(WIDTH)),
    "one's own": Kind(own, vectors(WIDTH)),
    "of one's own module": Kind(on_a_block, vectors(WIDTH), tied=None),
    "cached": Kind(cached, vectors(WIDTH), tied=None),
    "pruned": Kind(pruned, vectors(WIDTH)),
    "read twice": Kind(Tied, vectors(WIDTH), tied=None),
}


@each(KINDS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_computed_weights_are_followed(kind: Kind) -> None:
    assert_works(kind)


# ---- adapters ------------------------------------------------------------------------------------


class Host(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.one, self.two = Block(), Block()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.two(self.one(self.embed(ids))))


def adapted(**options: Any) -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(**{"r": 2, "target_modules": ["layer"], **options})
    return peft.get_peft_model(Host(), config)


def ids(rows: int) -> Any:
    return (torch.randint(0, 11, (rows, 4)),), {}


ADAPTED = {
    "adapters": Kind(adapted, ids, cuts=("base_model.model.two",)),
    "a head of its own": Kind(
        lambda: adapted(modules_to_save=["head"]), ids, cuts=("base_model.model.two",)
    ),
    "with biases, by magnitude": Kind(
        lambda: adapted(bias="all", use_dora=True), ids, cuts=("base_model.model.two",)
    ),
    "in the embedding": Kind(
        lambda: adapted(target_modules=["embed", "layer"]), ids, cuts=("base_model.model.two",)
    ),
    "with dropout": Kind(
        lambda: adapted(lora_dropout=0.5), ids, cuts=("base_model.model.two",), random=True
    ),
}


@each(ADAPTED)
def test_adapters_train_alone(kind: Kind) -> None:
    assert_works(kind)


def test_adapters_are_merged_and_taken_out_again() -> None:
    """Merging writes into the frozen weight; the pipeline reads what is there."""
    kind = ADAPTED["adapters"]
    model = kind.model()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    plain = copy.deepcopy(model)
    args, _ = kind.data(6)
    with kind.pipe(model, 2) as pipe, torch.no_grad():
        expected = plain(*args)
        torch.testing.assert_close(pipe(*args), expected)
        model.merge_adapter()
        torch.testing.assert_close(pipe(*args), expected)
        model.unmerge_adapter()
        torch.testing.assert_close(pipe(*args), expected)
        with model.disable_adapter(), plain.disable_adapter():
            torch.testing.assert_close(pipe(*args), plain(*args))
