from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from fxpipe.runtime.batch_norm import StageNorms, Statistics, can_defer
from fxpipe.runtime.shells import Shells, Swap

LAYERS = [
    (nn.BatchNorm1d(3), (10, 3)),
    (nn.BatchNorm1d(3, momentum=0.3), (10, 3, 4)),
    (nn.BatchNorm2d(3, momentum=None), (10, 3, 4, 4)),
    (nn.BatchNorm2d(3, affine=False), (10, 3, 4, 4)),
    (nn.BatchNorm3d(3, dtype=torch.float64), (10, 3, 2, 2, 2)),
]


def deferred(layer: nn.Module) -> tuple[nn.Module, StageNorms]:
    norms = StageNorms()
    return Shells({layer: Swap(norms.defer(layer))}).of(layer), norms


def run(
    shell: nn.Module, norms: StageNorms, pieces: list[Tensor]
) -> tuple[Statistics, list[Tensor]]:
    statistics = Statistics()
    outputs = []
    for m, piece in enumerate(pieces):
        norms.begin(statistics, m)
        outputs.append(shell(piece))
    return statistics, outputs


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_statistics_are_those_of_the_whole_batch(
    layer: nn.Module, shape: tuple[int, ...], channels_last: bool
) -> None:
    layer = copy.deepcopy(layer)
    eager, per_piece = copy.deepcopy(layer), copy.deepcopy(layer)
    shell, norms = deferred(layer)
    for _ in range(3):
        x = torch.randn(shape, dtype=layer.running_mean.dtype) * 3 + 1
        if channels_last and len(shape) == 4:
            x = x.to(memory_format=torch.channels_last)
        pieces = list(x.tensor_split(4))
        before = copy.deepcopy(layer.state_dict())
        statistics, outputs = run(shell, norms, pieces)
        assert all(map(torch.equal, layer.state_dict().values(), before.values()))
        statistics.commit()
        eager(x)
        assert all(map(torch.equal, outputs, [per_piece(piece) for piece in pieces]))
        assert layer.num_batches_tracked == eager.num_batches_tracked
        torch.testing.assert_close(layer.running_mean, eager.running_mean)
        torch.testing.assert_close(layer.running_var, eager.running_var)


def test_statistics_do_not_depend_on_who_was_first() -> None:
    layer = nn.BatchNorm1d(3)
    shell, norms = deferred(layer)
    pieces = list(torch.randn(8, 3).split(2))
    found = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        layer.reset_running_stats()
        statistics = Statistics()
        for m in order:
            norms.begin(statistics, m)
            shell(pieces[m])
        statistics.commit()
        found.append(layer.running_var.clone())
    assert torch.equal(*found)


def test_numbers_far_from_zero() -> None:
    layer = nn.BatchNorm1d(2, momentum=1.0)
    shell, norms = deferred(layer)
    x = torch.randn(64, 2) + 1e4
    statistics, _ = run(shell, norms, list(x.split(8)))
    statistics.commit()
    torch.testing.assert_close(layer.running_var, x.double().var(0).float(), rtol=1e-3, atol=1e-3)


def test_each_call_in_a_forward_is_an_update() -> None:
    layer = nn.BatchNorm1d(3)
    eager = copy.deepcopy(layer)
    shell, norms = deferred(layer)
    x, y = torch.randn(8, 3), torch.randn(8, 3) + 5
    statistics = Statistics()
    for m in range(2):
        norms.begin(statistics, m)
        shell(x[4 * m : 4 * m + 4])
        shell(y[4 * m : 4 * m + 4])
    statistics.commit()
    eager(x)
    eager(y)
    assert layer.num_batches_tracked == 2
    torch.testing.assert_close(layer.running_mean, eager.running_mean)
    torch.testing.assert_close(layer.running_var, eager.running_var)


def test_a_rerun_gives_the_same_and_counts_nothing() -> None:
    layer = nn.BatchNorm1d(3)
    shell, norms = deferred(layer)
    x = torch.randn(4, 3)
    statistics, (first,) = run(shell, norms, [x])
    norms.begin(None, 0)
    assert torch.equal(shell(x), first)
    statistics.commit()
    assert layer.num_batches_tracked == 1


def test_eval_mode_uses_the_running_statistics() -> None:
    layer = nn.BatchNorm1d(3)
    layer.running_mean += 2
    shell, norms = deferred(layer.eval())
    x = torch.randn(4, 3)
    statistics, (found,) = run(shell, norms, [x])
    assert torch.equal(found, layer(x))
    statistics.commit()
    assert layer.num_batches_tracked == 0


def test_errors_of_the_layer_stay_its_own() -> None:
    shell, norms = deferred(nn.BatchNorm2d(3))
    norms.begin(Statistics(), 0)
    with pytest.raises(ValueError, match="expected 4D input"):
        shell(torch.randn(4, 3))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        shell(torch.randn(1, 3, 1, 1))


class OwnForward(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


@pytest.mark.parametrize(
    ("layer", "can"),
    [
        (nn.BatchNorm1d(3), True),
        (nn.BatchNorm2d(3, track_running_stats=False), True),  # its own forward is used
        (OwnForward(3), False),
        (nn.InstanceNorm1d(3, track_running_stats=True), False),
        (nn.LayerNorm(3), False),
    ],
)
def test_which_layers_can_wait(layer: nn.Module, can: bool) -> None:
    assert can_defer(layer) is can


def test_without_running_statistics() -> None:
    layer = nn.BatchNorm1d(3, track_running_stats=False)
    shell, norms = deferred(layer)
    x = torch.randn(4, 3)
    statistics, (found,) = run(shell, norms, [x])
    assert torch.equal(found, layer(x))
    statistics.commit()
