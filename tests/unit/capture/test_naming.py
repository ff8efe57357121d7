from __future__ import annotations

import keyword

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxpipe import ops
from fxpipe.capture.naming import candidate, importable_name, qualified_class, safe, tensor_names


@pytest.mark.parametrize(
    ("op", "target", "name"),
    [
        ("call_module", "down_1.convs.conv_0", "down_1_convs_conv_0"),
        ("call_module", "0", "_0"),
        ("call_module", "", "model"),
        ("call_module", "forward", "forward_"),
        ("get_attr", "embed.weight", "embed_weight"),
        ("call_function", torch.cat, "cat"),
        ("call_method", "add_", "add"),
        ("call_method", "__invert__", "invert"),
        ("call_function", ops.set_item, "set_item"),
    ],
)
def test_candidates(op: str, target: object, name: str) -> None:
    assert candidate(op, target) == name  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["self", "stash", "pop", "2x", "a-b", "x.y"])
def test_safe_names_are_identifiers_that_source_does_not_use(name: str) -> None:
    made = safe(name)
    assert made.isidentifier()
    assert made not in ("self", "stash", "pop")


def test_node_names_are_no_keywords() -> None:
    graph = torch.fx.Graph()
    node = graph.create_node(
        "call_method", "lambda", (), {}, name=candidate("call_method", "lambda")
    )
    assert not keyword.iskeyword(node.name)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.cat, "torch.cat"),
        (F.relu, "torch.nn.functional.relu"),
        (torch._C._nn.gelu, "torch._C._nn.gelu"),
        (F.max_pool2d, "torch.nn.functional.max_pool2d"),
        (ops.affine, "fxpipe.ops.affine"),
        (lambda: 0, None),
    ],
)
def test_importable_names(function: object, name: str | None) -> None:
    assert importable_name(function) == name  # type: ignore[arg-type]


def test_tied_tensors_go_by_their_first_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    names = tensor_names(model)
    assert names[id(model[1].weight)] == "0.weight"
    assert names[id(model[2].running_mean)] == "2.running_mean"


def test_qualified_class() -> None:
    assert qualified_class(nn.ReLU()) == "torch.nn.modules.activation.ReLU"
