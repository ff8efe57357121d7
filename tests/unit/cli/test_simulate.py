from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fxpipe.ir.serial import from_json
from fxpipe.ir.timeline import Timeline

CLI = Callable[..., Result]


def test_without_a_model(fxpipe: CLI) -> None:
    output = fxpipe("simulate", "--devices", "3", "--chunks", "4", "--backward", "1").output
    assert output.startswith(
        "time    0 s            5 s            10 s\n"
        "rank 0  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3\n"
        "rank 1  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .\n"
        "rank 2  .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .\n"
    )
    assert "3 micro-batches" in output
    assert (
        "1f1b, 4 micro-batches, predicted: step 12 s, bubble 33.3% of the total (50.0% of ideal)"
        in output
    )


def test_a_schedule_of_my_own(fxpipe: CLI) -> None:
    Path("mine.txt").write_text("0F0 0B0 0F1 0B1\n1F0 1B0 1F1 1B1\n")
    output = fxpipe("simulate", "--schedule", "mine.txt", "--chunks", "2", "--backward", "1").output
    assert "\nrank 0  F0 .  .  B0 F1 .  .  B1\n" in output


def test_an_illegal_schedule_says_why(fxpipe: CLI) -> None:
    Path("mine.txt").write_text("0F0\n1F0 1B0\n")
    result = fxpipe("simulate", "--schedule", "mine.txt", "--chunks", "1", code=1)
    assert "IllegalScheduleError: schedule 'mine' cannot run" in result.output
    assert "rank 0 lacks 0B0, which makes the input gradient" in result.output


def test_files(fxpipe: CLI) -> None:
    fxpipe("simulate", "--svg", "a/step.svg", "--chrome", "step.json", "--save", "saved.json")
    assert Path("a/step.svg").read_text().startswith("<svg")
    assert json.loads(Path("step.json").read_text())["traceEvents"]
    assert from_json(Path("saved.json").read_text(), Timeline).num_ranks == 2


def test_links_cost_what_they_are_told(fxpipe: CLI) -> None:
    words = ("simulate", "--schedule", "forward", "--chunks", "1", "--devices", "2")
    assert "step 2.5 s" in fxpipe(*words, "--latency", "0.5").output
    assert "step 4 s" in fxpipe(*words, "--bandwidth", "2").output  # a value has 4 bytes


def test_with_a_model(fxpipe: CLI) -> None:
    output = fxpipe("simulate", "tests.unit.cli.models:with_args", "--costs", "estimate").output
    assert "1f1b, 8 micro-batches, predicted" in output


def test_without_a_model_torch_is_not_loaded() -> None:
    code = (
        "import sys; from fxpipe.cli.main import app; "
        "app(['simulate', '--chunks', '2'], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_a_schedule_gets_the_stages_it_is_made_for(fxpipe: CLI) -> None:
    words = ("simulate", "--devices", "4", "--chunks", "16", "--schedule", "v-half")
    output = fxpipe(*words).output
    assert "step 50.5 s" in output
    assert output.count("3 micro-batches\n") == 4  # half of what 1F1B keeps at most, and one
    assert "step 77 s" in fxpipe(*words, "--stages", "4").output


def test_a_recomputation_keeps_little_until_then(fxpipe: CLI) -> None:
    Path("mine.txt").write_text("0F0 0F1 0R0 0B0 0R1 0B1\n1F0 1B0 1F1 1B1\n")
    output = fxpipe("simulate", "--schedule", "mine.txt").output
    assert output.count("1 micro-batch\n") == 2


@pytest.mark.parametrize(
    ("option", "number"),
    [("forward", "nan"), ("backward", "inf"), ("latency", "nan"), ("bandwidth", "-1")],
)
def test_times_that_are_none_are_refused(fxpipe: CLI, option: str, number: str) -> None:
    output = fxpipe("simulate", f"--{option}", number, code=2).output
    assert f"'--{option}': expected a finite number, not below 0, got {number}" in output


@pytest.mark.parametrize(
    "words", [("--cuts", "a"), ("-i", "f32[8,3]"), ("--seed", "0"), ("--eval",), ("--mode", "real")]
)
def test_options_of_a_model_need_one(fxpipe: CLI, words: tuple[str, ...]) -> None:
    output = fxpipe("simulate", *words, code=2).output
    assert "is for a model, and none is named" in output
    assert "--input" in output if words[0] == "-i" else words[0] in output


@pytest.mark.parametrize("option", ["--forward", "--backward"])
def test_a_model_has_costs_of_its_own(fxpipe: CLI, option: str) -> None:
    output = fxpipe("simulate", "tests.unit.cli.models:with_args", option, "3", code=2).output
    assert f"{option} is for stages without a model; a model has its own" in output
