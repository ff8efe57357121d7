from __future__ import annotations

import weakref

import pytest
import torch

from fxpipe.errors import ExecutionError
from fxpipe.ir.stage import Edge
from fxpipe.portals.store import PortalStore


@pytest.fixture
def store() -> PortalStore:
    return PortalStore([Edge("skip", 0, (2, 4)), Edge("short", 0, (2,))])


def test_each_reader_gets_the_value(store: PortalStore) -> None:
    value = torch.ones(1)
    store.stash("skip", 0, value)
    assert store.pop("skip", 4, 0) is value
    assert store.pop("skip", 2, 0) is value


def test_micro_batches_do_not_mix(store: PortalStore) -> None:
    store.stash("short", 0, "first")
    store.stash("short", 1, "second")
    assert store.pop("short", 2, 1) == "second"
    assert store.pop("short", 2, 0) == "first"


def test_freed_at_the_last_use(store: PortalStore) -> None:
    value = torch.ones(1)
    alive = weakref.ref(value)
    store.stash("skip", 0, value)
    del value
    store.pop("skip", 2, 0)
    assert alive() is not None
    assert len(store) == 1
    store.pop("skip", 4, 0)
    assert alive() is None
    assert len(store) == 0


@pytest.mark.parametrize(
    ("value", "stage", "micro_batch"), [("skip", 2, 1), ("skip", 3, 0), ("other", 2, 0)]
)
def test_never_stashed(store: PortalStore, value: str, stage: int, micro_batch: int) -> None:
    store.stash("skip", 0, 1)
    with pytest.raises(ExecutionError, match=f"'{value}' was never stashed for stage {stage}"):
        store.pop(value, stage, micro_batch)


def test_popped_twice(store: PortalStore) -> None:
    store.stash("skip", 3, 1)
    store.pop("skip", 2, 3)
    with pytest.raises(ExecutionError, match="'skip' was popped twice by stage 2, micro-batch 3"):
        store.pop("skip", 2, 3)


def test_stashed_twice(store: PortalStore) -> None:
    store.stash("short", 0, 1)
    with pytest.raises(ExecutionError, match="'short' was stashed twice"):
        store.stash("short", 0, 1)
    store.pop("short", 2, 0)
    with pytest.raises(ExecutionError, match="'short' was stashed twice"):
        store.stash("short", 0, 1)


def test_stashed_for_nobody(store: PortalStore) -> None:
    with pytest.raises(ExecutionError, match="'other' was stashed, but no stage reads it"):
        store.stash("other", 0, 1)


def test_reset(store: PortalStore) -> None:
    store.stash("short", 0, 1)
    store.pop("short", 2, 0)
    store.stash("skip", 0, 1)
    store.reset()
    assert len(store) == 0
    store.stash("short", 0, 2)
    assert store.pop("short", 2, 0) == 2
