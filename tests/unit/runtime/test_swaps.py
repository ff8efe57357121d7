from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpipe.ir.stage import RandomScope
from fxpipe.runtime.rng import StageKeys, step_key
from fxpipe.runtime.shells import Shells
from fxpipe.runtime.swaps import compiled_above, random_swaps

CPU = torch.device("cpu")


def identity(module: object, inputs: object) -> object:
    return module


def model() -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            "plain": nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
            "compiled": torch.compile(nn.Sequential(nn.Dropout(0.5)), backend=identity),
            "alpha": nn.AlphaDropout(0.5),
        }
    )


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("", None),
        ("plain.1", None),
        ("compiled", "compiled"),
        ("compiled._orig_mod.0", "compiled"),
    ],
)
def test_the_outermost_compiled_module(path: str, found: str | None) -> None:
    assert compiled_above(model(), path) == found


def test_modules_compiled_in_place() -> None:
    found = model()
    found["plain"].compile(backend=identity)
    assert compiled_above(found, "plain.1") == "plain"
    swap = random_swaps(found, [RandomScope("plain.1", 0, True)], StageKeys(), CPU)
    assert list(swap) == [found["plain"]]
    assert swap[found["plain"]].attribute == "_compiled_call_impl"


def test_one_swap_per_module() -> None:
    found = model()
    scopes = [
        RandomScope("plain.1", 0, True),
        RandomScope("compiled._orig_mod.0", 0, True),
        RandomScope("compiled", 0, True),
        RandomScope("alpha", 0, True),
    ]
    swaps = random_swaps(found, scopes, StageKeys(), CPU)
    assert list(swaps) == [found["plain"][1], found["compiled"], found["alpha"]]


def test_calls_get_keys_of_their_own() -> None:
    found = model()
    keys = StageKeys()
    scopes = [RandomScope("plain.1", 0, True), RandomScope("alpha", 0, True)]
    shells = Shells(random_swaps(found, scopes, keys, CPU))
    before = torch.get_rng_state()
    x = torch.ones(64)
    for path in ("plain.1", "alpha"):
        layer = shells.of(found.get_submodule(path))
        draws = []
        for micro_batch in (0, 1, 0):
            keys.begin(step_key(0, 0), micro_batch)
            draws.append((layer(x), layer(x)))
        assert torch.equal(torch.stack(draws[0]), torch.stack(draws[2]))
        assert not torch.equal(draws[0][0], draws[0][1])
        assert not torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(before, torch.get_rng_state())
