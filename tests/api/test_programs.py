"""The demo and the benchmarks run from end to end, with tiny settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        # Threads that spin for each other would wait long where tests share the cores.
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_demo_trains_and_writes_what_can_be_looked_at(tmp_path: Path) -> None:
    shown = run("examples.train_unet", "--seconds", "2", "--out", str(tmp_path))
    written = {path.name for path in tmp_path.iterdir()}
    assert {"graph.svg", "stage_0.py", "stage_1.py", "timeline.svg", "timeline.png"} <= written
    for line in ("step time: predicted", "eager on one core", "eager on all cores"):
        assert line in shown


@pytest.mark.parametrize("name", ["overhead", "side_by_side"])
def test_benchmarks_beside_torchgpipe(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torchgpipe")
    run(f"benchmarks.{name}", "--quick", "--out", str(tmp_path))
    assert (tmp_path / f"{name}.json").exists()
    assert (tmp_path / f"{name}.md").exists()


@pytest.mark.parametrize("name", ["memory", "keyed_dropout", "simulator"])
def test_benchmarks_of_fxpipe_alone(name: str, tmp_path: Path) -> None:
    run(f"benchmarks.{name}", "--quick", "--out", str(tmp_path))
    assert (tmp_path / f"{name}.json").exists()


def test_the_zoo_writes_its_page(tmp_path: Path) -> None:
    path = tmp_path / "zoo.md"
    run("benchmarks.zoo", "--quick", "--only", "DLRM", "--only", "GCN", "--output", str(path))
    text = path.read_text()
    assert "**2 of 2 captured, 2 as in eager execution.**" in text
    assert "| DLRM-like | own | " in text
    assert "| `torch.export` | " in text


def test_gpu_check_says_so_without_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device: benchmarks/gpu_check.py is run by hand")
    assert "no CUDA device" in run("benchmarks.gpu_check")
