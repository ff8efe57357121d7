"""The published sizes of the models, counted on the meta device, and that each trains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from examples.models.amoebanet import AmoebaNetD
from examples.models.dlrm import DLRM
from examples.models.gnmt import GNMT
from examples.models.gpt import GPT
from examples.models.resnet import ResNet, resnet101
from examples.models.tagger import Tagger
from examples.models.transformer import TransformerStack
from examples.models.unet import UNet


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("units", "channels", "published"),
    [
        (5, 64, 232_687_328),
        (6, 72, 362_157_516),
        (11, 128, 2_213_834_176),
        (24, 128, 4_993_859_008),
        (24, 160, 7_802_903_600),
        (48, 160, 15_822_206_000),
    ],
)
def test_unet_has_the_published_number_of_parameters(
    units: int, channels: int, published: int
) -> None:
    with torch.device("meta"):
        assert parameters_of(UNet(units, channels)) == published


@pytest.mark.parametrize(
    ("layers", "filters", "published"),
    [
        (18, 208, 81_505_540),
        (18, 256, 122_470_120),
        (18, 416, 319_024_120),
        (18, 544, 542_734_840),
        (36, 544, 1_055_832_376),
        (72, 512, 1_844_858_344),
    ],
)
def test_amoebanet_has_the_published_number_of_parameters(
    layers: int, filters: int, published: int
) -> None:
    with torch.device("meta"):
        assert parameters_of(AmoebaNetD(layers, filters)) == published


def test_resnet101_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        assert parameters_of(resnet101()) == 44_549_160


def test_gpt_has_the_number_of_parameters_of_gpt2() -> None:
    with torch.device("meta"):
        assert parameters_of(GPT(50257, 1024)) == 124_439_808


@pytest.mark.parametrize(
    ("model", "shape", "result"),
    [
        (UNet(1, 4), (2, 3, 64, 64), (2, 1, 64, 64)),
        (UNet(2, 4), (2, 3, 70, 81), (2, 1, 70, 81)),
        (AmoebaNetD(3, 16, classes=10), (2, 3, 64, 64), (2, 10)),
        (AmoebaNetD(3, 16, classes=10), (2, 3, 224, 224), (2, 10)),
        (ResNet((1, 1, 1, 1), classes=10, width=8), (2, 3, 64, 64), (2, 10)),
        (TransformerStack(2, 32, 4, dropout=0.1), (2, 7, 32), (2, 7, 32)),
    ],
    ids=["unet", "unet-odd", "amoebanet", "amoebanet-224", "resnet", "transformer"],
)
def test_shapes_and_every_parameter_gets_a_gradient(
    model: nn.Module, shape: tuple[int, ...], result: tuple[int, ...]
) -> None:
    output = model(torch.randn(shape))
    assert output.shape == result
    output.square().mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


IDS = torch.arange(12).reshape(2, 6)


@pytest.mark.parametrize(
    ("model", "inputs", "result"),
    [
        (
            DLRM([12, 12], dense=4, width=4, bottom=[8], top=[8]),
            (IDS[:, :4] / 12, [IDS, IDS]),
            (2,),
        ),
        (Tagger(12, 5, width=4), (IDS, torch.tensor([3, 6])), (2, 6, 5)),
        (GNMT(12, width=4, layers=3), (IDS, torch.tensor([3, 6]), IDS[:, :4]), (2, 4, 12)),
    ],
    ids=["dlrm", "tagger", "gnmt"],
)
def test_models_over_ids(model: nn.Module, inputs: tuple[object, ...], result: object) -> None:
    output = model(*inputs)
    assert output.shape == result
    output.square().mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_gpt_gives_a_loss_where_it_is_given_targets() -> None:
    torch.manual_seed(0)
    model = GPT(12, 8, depth=2, width=8, heads=2, dropout=0.1)
    logits, loss = model(IDS, IDS)
    assert logits.shape == (2, 6, 12)
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    model.eval()
    last, none = model(IDS)
    assert none is None
    torch.testing.assert_close(last[:, 0], model(IDS, IDS)[0][:, -1])
    with pytest.raises(ValueError, match="at most 8"):
        model(torch.zeros(1, 9, dtype=torch.long))


def test_words_behind_the_end_of_a_sequence_do_not_matter() -> None:
    torch.manual_seed(0)
    lengths, changed = torch.tensor([3, 6]), IDS.clone()
    changed[0, 3:] = 1
    tagger = Tagger(12, 5, width=4)
    assert torch.equal(tagger(IDS, lengths)[0, :3], tagger(changed, lengths)[0, :3])
