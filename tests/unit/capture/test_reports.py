from __future__ import annotations

import torch
from torch import Tensor, nn

from fxpipe.capture.trace import trace
from fxpipe.ir.capture import LeafReport


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


def leaves_of(second: nn.Module) -> list[LeafReport]:
    model = nn.Sequential(nn.Linear(4, 4), second, nn.Linear(4, 4))
    return list(trace(model, (torch.randn(4, 4),)).leaves)


def test_layers_are_not_told() -> None:
    assert leaves_of(Block()) == []


def test_a_fallback_names_line_operation_reason_and_remedy() -> None:
    (leaf,) = leaves_of(Decides())
    assert leaf.path == "1"
    assert leaf.module_class.endswith(".Decides")
    assert leaf.reason == "its Python code depends on values of tensors"
    assert "x * 2 if x.sum() > 0 else x" in leaf.source
    assert leaf.operation == "__bool__"
    assert "torch.where" in leaf.remedy


def test_a_module_with_backward_hooks_is_told() -> None:
    block = Block()
    block.register_full_backward_hook(lambda *_: None)
    (leaf,) = leaves_of(block)
    assert (leaf.path, leaf.module_class.rpartition(".")[2]) == ("1", "Block")
    assert "backward hooks" in leaf.reason
    assert "modules further inside" in leaf.remedy


def test_compiled_code_is_told() -> None:
    (leaf,) = leaves_of(torch.jit.script(Block()))
    assert leaf.path == "1"
    assert "torch.jit" in leaf.reason
    assert "before torch.compile or torch.jit" in leaf.remedy
    (leaf,) = leaves_of(torch.compile(Block(), backend="eager"))
    assert "torch.compile" in leaf.reason
    assert "before torch.compile or torch.jit" in leaf.remedy


def test_a_fast_path_is_told() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2)).eval()
    assert trace(model, (torch.randn(4, 3, 4),)).leaves == ()

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.encoder(x, src_key_padding_mask=padding)

    padding = torch.zeros(4, 3, dtype=torch.bool)
    with torch.no_grad():
        (leaf,) = trace(Padded().eval(), (torch.randn(4, 3, 4), padding)).leaves
    assert leaf.path == "encoder"
    assert "enable_nested_tensor=False" in leaf.remedy
