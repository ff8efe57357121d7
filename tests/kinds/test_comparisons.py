"""Numbers out of the data that are only compared, and sizes that a mask decides on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxpipe
from fxpipe.capture.guards import guards_of
from fxpipe.ops import check_passes
from tests.cases.blocks import WIDTH
from tests.exact import Batch, Kind
from tests.kinds.check import assert_works, each
from tests.kinds.compared import (
    ChecksLengths,
    ChecksNumbers,
    ComparesByName,
    ComparesFractions,
    SelectsByMask,
    UsesTheNumber,
)


def lengths(rows: int) -> Batch:
    return (torch.randn(rows, WIDTH), torch.randint(1, WIDTH + 1, (rows,))), {}


def masks(rows: int) -> Batch:
    mask = torch.zeros(rows, 4, dtype=torch.bool)
    mask[:, 1:3] = True
    return (torch.randn(rows, 4, WIDTH), mask), {}


KINDS = {
    "lengths": Kind(ChecksLengths, lengths),
    "by name": Kind(ComparesByName, lengths),
    "fractions": Kind(ComparesFractions, lengths),
    "numbers": Kind(ChecksNumbers, lengths),
    "used": Kind(UsesTheNumber, lengths),
    "mask": Kind(SelectsByMask, masks),
}


@each(KINDS)
def test_whole_and_in_two(kind: Kind) -> None:
    assert_works(kind, 1)


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize(
    ("cls", "guards", "checks"),
    [
        (ChecksLengths, 2, 0),
        (ComparesByName, 2, 0),
        (ComparesFractions, 2, 0),
        (ChecksNumbers, 0, 3),
        (UsesTheNumber, 1, 0),
    ],
)
def test_what_is_checked(cls: type[nn.Module], guards: int, checks: int, mode: str) -> None:
    args, kwargs = lengths(6)
    capture = fxpipe.trace(cls(), args, kwargs, mode=mode)
    made = [node for node in capture.graph.nodes if node.target is check_passes]
    assert (len(guards_of(capture)), len(made)) == (guards, checks)
    assert not capture.leaves


def test_many_numbers_are_two_ways() -> None:
    model = Kind(ComparesByName, lengths).model()
    example, _ = lengths(6)
    with fxpipe.compile(
        model, ["cpu"] * 2, chunks=3, example_args=example, costs="estimate", max_variants=2
    ) as pipe:
        for longest in range(1, 40, 3):
            x, n = torch.randn(6, WIDTH), torch.full((6,), longest)
            parts = zip(x.split(2), n.split(2), strict=True)
            assert torch.equal(pipe(x, n), torch.cat([model(*part) for part in parts]))


def test_an_assertion_on_inputs_is_the_model_s_own() -> None:
    example, _ = lengths(6)
    with (
        fxpipe.compile(
            ChecksLengths(), ["cpu"] * 2, chunks=3, example_args=example, costs="estimate"
        ) as pipe,
        pytest.raises(AssertionError),
    ):
        pipe(example[0], example[1] + 100)


def test_every_size_that_a_mask_leaves_is_recorded() -> None:
    model = Kind(SelectsByMask, masks).model()
    (x, mask), _ = masks(6)
    with fxpipe.compile(
        model, ["cpu"] * 2, chunks=3, example_args=(x, mask), costs="estimate"
    ) as pipe:
        for more in (0, 1):
            mask[:, 2 + more] = True
            parts = zip(x.split(2), mask.split(2), strict=True)
            assert torch.equal(pipe(x, mask), torch.cat([model(*part) for part in parts]))
