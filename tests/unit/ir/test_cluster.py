from __future__ import annotations

import math
from typing import Any

import pytest

from fxpipe.ir.cluster import Cluster


def test_the_last_speed_holds_beyond() -> None:
    cluster = Cluster(4, speeds=(1.0, 0.8))
    assert [cluster.speed(busy) for busy in (1, 2, 3, 4)] == [1.0, 0.8, 0.8, 0.8]


def test_transfers() -> None:
    assert Cluster(2, latency=0.5, bandwidth=100.0).transfer_time(50) == 1.0
    assert Cluster(2, latency=0.5).transfer_time(10**9) == 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": 0},
        {"ranks": 2.5},
        {"ranks": "2"},
        {"ranks": 2, "memory": -1},
        {"ranks": 2, "memory": math.nan},
        {"ranks": 1, "latency": -1.0},
        {"ranks": 1, "bandwidth": -1.0},
        {"ranks": 1, "speeds": ()},
        {"ranks": 1, "speeds": (1.0, 0.0)},
    ],
)
def test_impossible_clusters_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rank|negative|positive"):
        Cluster(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"latency": math.nan}, {"latency": math.inf}, {"bandwidth": math.nan}]
)
def test_transfers_that_never_end_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="latency and bandwidth"):
        Cluster(2, **wrong)  # type: ignore[arg-type]
