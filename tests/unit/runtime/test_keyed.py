from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxpipe.runtime.keyed import KeyedMode, keyed_dropout, with_generator
from fxpipe.runtime.rng import mix

LAYERS = [
    (nn.Dropout(0.3), (4, 5)),
    (nn.Dropout(0.3, inplace=True), (4, 5)),
    (nn.Dropout(0.0), (4, 5)),
    (nn.Dropout(1.0), (4, 5)),
    (nn.Dropout(0.3), (0, 5)),
    (nn.Dropout1d(0.3), (4, 5, 6)),
    (nn.Dropout1d(0.3), (5, 6)),
    (nn.Dropout2d(0.3), (4, 5, 2, 2)),
    (nn.Dropout2d(0.3, inplace=True), (4, 5, 2, 2)),
    (nn.Dropout3d(0.3), (4, 5, 2, 2, 2)),
    (nn.Dropout3d(0.3), (5, 2, 2, 2)),
]


def differentiated(layer: nn.Module | None, x: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """Output and gradient of a layer; None: of `keyed_dropout` with the key."""
    leaf = x.clone().requires_grad_()
    y = layer(leaf * 1.0) if key < 0 else keyed_dropout(layer, leaf * 1.0, key)
    y.square().sum().backward()
    assert leaf.grad is not None
    return y.detach(), leaf.grad


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_keyed_dropout_is_the_layers_own(
    layer: nn.Module, shape: tuple[int, ...], transposed: bool
) -> None:
    """Bit for bit what the layer gives if the default generator is seeded with the key."""
    x = torch.randn(shape)
    if transposed:
        x = torch.randn(shape[::-1]).permute(*range(len(shape) - 1, -1, -1))
    torch.manual_seed(77)
    expected = differentiated(layer, x, -1)
    before = torch.get_rng_state()
    found = differentiated(layer, x, 77)
    assert all(map(torch.equal, found, expected))
    assert torch.equal(before, torch.get_rng_state())


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x[..., None], 0.4, training=True),
    "rand": lambda x: x + torch.rand(3, 4),
    "randn": lambda x: x + torch.randn(4),
    "randn_none": lambda x: x + torch.randn(4, generator=None),
    "randint": lambda x: x + torch.randint(0, 9, (4,)),
    "randint_low": lambda x: x + torch.randint(3, (4,)),
    "randperm": lambda x: x[torch.randperm(3)],
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 9),
    "normal": lambda x: torch.normal(0.0, x.abs() + 1),
    "normal_": lambda x: x.clone().normal_(),
    "normal_float": lambda x: x + torch.normal(0.0, 1.0, (4,)),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_p": lambda x: torch.bernoulli(x, 0.5),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 2),
    "poisson": lambda x: torch.poisson(x.abs()),
    "exponential_": lambda x: x.clone().exponential_(),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
}


@pytest.mark.parametrize("name", RANDOM)
def test_mode_gives_every_random_operator_its_key(name: str) -> None:
    """The first draw follows the first key, as the default generator would if seeded with it."""
    function, x = RANDOM[name], torch.randn(3, 4)
    with KeyedMode(11):
        found = function(x)
    torch.manual_seed(mix(11, 0) & 0xFFFF_FFFF_FFFF_FFFF)
    expected = function(x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", RANDOM)
def test_mode_leaves_the_default_generator_alone(name: str) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with KeyedMode(11):
        RANDOM[name](torch.randn(3, 4, generator=torch.Generator()))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(4, 4, num_layers=3, dropout=0.5),
        nn.GRU(4, 4, num_layers=2, dropout=0.5, bidirectional=True),
        nn.MultiheadAttention(4, 2, dropout=0.5),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_of_many_draws(layer: nn.Module) -> None:
    x = torch.randn(5, 2, 4)
    args = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x,)

    def run(key: int) -> Tensor:
        with KeyedMode(key):
            result = layer(*args)
        return result[0] if isinstance(result, tuple) else result

    before = torch.get_rng_state()
    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    assert torch.equal(before, torch.get_rng_state())


def test_draws_are_numbered() -> None:
    """Starting at a later draw gives the later numbers: a flat node draws what its module would."""
    x = torch.ones(50)
    with KeyedMode(5):
        first, second = F.dropout(x, 0.5), F.dropout(x, 0.5)
    with KeyedMode(5, first_draw=1):
        again = F.dropout(x, 0.5)
    assert torch.equal(again, second)
    assert not torch.equal(first, second)


def test_what_draws_nothing_takes_no_key() -> None:
    x = torch.ones(50)
    with KeyedMode(5):
        F.dropout(x, 0.5, training=False)
        torch.rand(3, generator=torch.Generator().manual_seed(1))
        first = F.dropout(x, 0.5)
    with KeyedMode(5):
        assert torch.equal(F.dropout(x, 0.5), first)


def test_a_users_generator_is_respected() -> None:
    with KeyedMode(5):
        found = torch.rand(3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(1)))


def test_the_inner_mode_comes_first() -> None:
    x = torch.ones(50)
    with KeyedMode(1):
        outer = F.dropout(x, 0.5)
    with KeyedMode(2):
        inner = F.dropout(x, 0.5)
    with KeyedMode(1):
        with KeyedMode(2):
            assert torch.equal(F.dropout(x, 0.5), inner)
        assert torch.equal(F.dropout(x, 0.5), outer)


def test_a_mode_belongs_to_its_thread() -> None:
    x = torch.ones(1000)
    found: dict[int, Tensor] = {}

    def draw(key: int) -> None:
        with KeyedMode(key):
            found[key] = torch.cat([F.dropout(x, 0.5) for _ in range(50)])

    threads = [threading.Thread(target=draw, args=(key,)) for key in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key in (1, 2):
        with KeyedMode(key):
            assert torch.equal(torch.cat([F.dropout(x, 0.5) for _ in range(50)]), found[key])


def test_overloads_with_a_generator() -> None:
    aten = torch.ops.aten
    assert with_generator(aten.rand.default) is aten.rand.generator
    assert with_generator(aten.randint.low) is aten.randint.low_generator
    assert with_generator(aten.bernoulli_.float) is aten.bernoulli_.float
    assert with_generator(aten.native_dropout.default) is None
