"""Which modules stay whole without being asked: layers that are one kernel, or that hide their code."""

from __future__ import annotations

from itertools import takewhile
from typing import Any, Final

import torch
from torch import nn
from torch.nn.utils import parametrize

_CONTAINERS: Final = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.ParameterList,
    nn.ParameterDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
)
"""Modules of torch.nn that only call others."""


def leaf_reason(module: nn.Module) -> str | None:
    """Why a module is one node of the graph; None if it is looked into."""
    if is_layer(module):
        return "a layer of torch.nn"
    if module._backward_hooks or module._backward_pre_hooks:
        return "it has full backward hooks, which see its gradients as a whole"
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by torch.jit"
    for cls in type(module).__mro__:
        place = cls.__module__
        if place.startswith("torch._dynamo"):
            return "it is compiled by torch.compile"
        if place.startswith(("torch.distributed", "torch.nn.parallel")):
            return f"it is wrapped by {cls.__name__}"
    return None


def is_layer(module: nn.Module) -> bool:
    """Whether a module is a layer of torch.nn: its class is torch's, parametrized or not."""
    cls = type(module)
    if parametrize.is_parametrized(module) and "Parametrized" in cls.__name__:
        cls = cls.__bases__[0]
    if issubclass(cls, _CONTAINERS):
        return False
    return cls.__module__.startswith(("torch.nn.", "torch.ao.nn."))


def takes_fast_path(module: nn.Module, arguments: Any) -> bool:
    """Whether a module may compute otherwise where no torch function mode is active.

    In inference the layers of nn.Transformer call one fused kernel, and its encoder packs padded
    sequences.
    """
    if module.training:
        return False
    if isinstance(module, nn.TransformerEncoder):
        args, kwargs = arguments
        masks = [*args[2:3], kwargs.get("src_key_padding_mask")]
        packs = getattr(module, "use_nested_tensor", False) and not torch.is_grad_enabled()
        return bool(packs) and any(mask is not None for mask in masks)
    return isinstance(module, nn.TransformerEncoderLayer | nn.MultiheadAttention)


_SMALL: Final = 0.1
"""Share of the parameters. A larger module is not kept whole for a decision that can be checked before
the model runs."""


def is_small(model: nn.Module, path: str) -> bool:
    """Whether a module is no loss if it stays whole."""
    return bool(path) and parameter_share(model, path) <= _SMALL


def parameter_share(model: nn.Module, path: str) -> float:
    """The share of a model's parameters that one of its modules has; 0 if the model has none."""
    total = sum(parameter.numel() for parameter in model.parameters())
    module = model.get_submodule(path)
    return sum(p.numel() for p in module.parameters()) / max(total, 1)


def common_path(one: str, two: str) -> str:
    """The path of the innermost module around two."""
    pairs = zip(one.split("."), two.split("."), strict=False)
    return ".".join(part for part, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
