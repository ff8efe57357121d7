from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from fxpipe.runtime.rng import StageKeys, generator, mix, scope_hash, seeded_default, step_key


def test_keys_are_the_same_in_every_process() -> None:
    """A resumed run draws the numbers that the first one would have drawn."""
    assert step_key(0, 0) == step_key(0, 0)
    code = "from fxpipe.runtime.rng import *; print(step_key(7, 3), scope_hash('a.b#0'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(step_key(7, 3)), str(scope_hash("a.b#0"))]


def test_every_part_of_the_key_matters() -> None:
    found = set()
    for seed in range(4):
        for step in range(4):
            for micro_batch in range(4):
                keys = StageKeys()
                keys.begin(step_key(seed, step), micro_batch)
                for scope in ("a#0", "a#1", "b#0"):
                    found |= {mix(keys.scope(scope), draw) for draw in range(3)}
    assert len(found) == 4 * 4 * 4 * 3 * 3


@pytest.mark.parametrize("bits", [range(32), range(64)])
def test_low_bits_are_mixed(bits: range) -> None:
    """The CPU generator takes the low 32 bits of its seed: they must differ by themselves."""
    mask = sum(1 << bit for bit in bits)
    keys = {mix(step_key(0, step), draw) & mask for step in range(100) for draw in range(100)}
    assert len(keys) == 100 * 100


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_any_seed_torch_takes(seed: int) -> None:
    key = step_key(seed, 0)
    assert 0 <= key < 2**64
    generator(key, torch.device("cpu"))


def test_generator_equals_the_default_generator_seeded_alike() -> None:
    torch.manual_seed(123)
    expected = torch.empty(100).bernoulli_(0.3)
    found = torch.empty(100).bernoulli_(0.3, generator=generator(123, torch.device("cpu")))
    assert torch.equal(found, expected)


def test_a_generator_per_thread() -> None:
    mine = generator(1, torch.device("cpu"))
    others: list[torch.Generator] = []
    thread = threading.Thread(target=lambda: others.append(generator(2, torch.device("cpu"))))
    thread.start()
    thread.join()
    assert others[0] is not mine
    assert mine.initial_seed() == 1
    assert generator(3, torch.device("cpu")) is mine


def test_seeded_default_is_put_back() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded_default(9, torch.device("cpu")):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(9)
    assert torch.equal(torch.rand(3), inside)


def test_seeded_default_is_put_back_after_a_failure() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), seeded_default(9, torch.device("cpu")):
        torch.rand(3) @ torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_calls_are_counted_from_the_first_one_anew_for_each_micro_batch() -> None:
    keys = StageKeys()
    calls = keys.counter("encoder.drop", 2)
    for micro_batch in range(2):
        keys.begin(step_key(0, 0), micro_batch)
        assert [calls.next_scope() for _ in range(2)] == ["encoder.drop#2", "encoder.drop#3"]
