from __future__ import annotations

import pytest
import typer

from fxpipe.cli.ranks import chunk_count, device_names, stage_count
from fxpipe.ir.cluster import Cluster
from fxpipe.ir.schedule import Schedule


def test_devices() -> None:
    assert device_names("3") == ["cpu"] * 3
    assert device_names("cuda:0, cuda:1") == ["cuda:0", "cuda:1"]
    for nothing in ("0", "-1", "", ","):
        with pytest.raises(typer.BadParameter, match="names no device"):
            device_names(nothing)


def test_stages() -> None:
    assert stage_count(None, 3) == 3
    assert stage_count(6, 3) == 6
    with pytest.raises(typer.BadParameter, match="2 stages for 3 devices"):
        stage_count(2, 3)


def test_chunks() -> None:
    assert chunk_count(None, 2) == 8
    assert chunk_count(5, 2) == 5
    assert chunk_count(None, 2, rows=3) == 3
    with pytest.raises(typer.BadParameter, match="at least one micro-batch"):
        chunk_count(0, 2)


def test_cpu_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert Cluster.local(["cpu"] * 4).speeds == (1.0, 1.0, 2 / 3, 0.5)
    assert Cluster.local(["cuda:0", "cuda:1"]).speeds == (1.0,)


def test_cuts_and_schedules_say_how_many() -> None:
    own = Schedule.from_text("0F0 2F0\n1F0")
    assert stage_count(None, 3, "zb-v") == 6
    assert stage_count(None, 3, "zb-h1") == 3
    assert stage_count(None, 2, own) == 3
    assert stage_count(None, 2, "zb-v", "a, b") == 3
    assert stage_count(2, 2, "zb-v") == 2
    assert chunk_count(None, 2, schedule=own) == 1
