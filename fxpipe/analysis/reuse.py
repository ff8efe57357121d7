"""Which weights a forward may use more than once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

if TYPE_CHECKING:
    from torch import Tensor

    from fxpipe.ir.capture import Capture

_ONCE: Final = frozenset(
    {
        nn.Linear,
        NonDynamicallyQuantizableLinear,
        nn.Bilinear,
        nn.Conv1d,
        nn.Conv2d,
        nn.Conv3d,
        nn.ConvTranspose1d,
        nn.ConvTranspose2d,
        nn.ConvTranspose3d,
        nn.PReLU,
        nn.MultiheadAttention,
        nn.TransformerEncoderLayer,
        nn.TransformerDecoderLayer,
    }
)
"""Layers that multiply by each weight of their own once (by parts of it, if by more)."""

_NEVER: Final = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)
"""Layers that multiply no matrices."""


def reused_weights(capture: Capture, model: nn.Module) -> frozenset[Tensor]:
    """The parameters that one forward may multiply by more than once.

    Of the layers known to do it once, those that are called again, or share a weight; of any other
    module that is called whole, all.
    """
    uses: Counter[Tensor] = Counter()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for node in capture.graph.nodes:
        if node.op == "call_module":
            uses.update(_uses(model.get_submodule(str(node.target))))
        elif node.op == "get_attr" and str(node.target) in parameters:
            uses[parameters[str(node.target)]] += len(node.users)
    return frozenset(parameter for parameter, count in uses.items() if count > 1)


def _uses(called: nn.Module) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for module in called.modules():
        if isinstance(module, _NEVER):
            continue
        count = 1 if type(module) in _ONCE else 2
        for parameter in module.parameters(recurse=False):
            found[parameter] += count
    return found
