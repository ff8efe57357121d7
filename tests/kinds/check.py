"""How a kind of model is tried: whole, in two stages, and cut at places all over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.exact import Kind, assert_exact, assert_exact_at_every_cut


def each(kinds: Mapping[str, Kind]) -> Any:
    """A test for every kind."""
    return pytest.mark.parametrize("kind", kinds.values(), ids=list(kinds))


def assert_works(kind: Kind, places: int = 3, **options: Any) -> None:
    """Exact in training and evaluation, in one stage and two, with and without recomputation.

    Args:
        kind: the model.
        places: at how many places it is cut.
        options: of `fxpipe.compile`.
    """
    assert_exact(kind, 1, **options)
    assert_exact(kind, 2, recompute="always", **options)
    if not kind.cuts:
        assert_exact_at_every_cut(kind, places, **options)
