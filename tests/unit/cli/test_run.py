from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

CLI = Callable[..., Result]
MODEL = "tests.unit.cli.models:with_args"


def test_steps_are_measured_beside_the_prediction(fxpipe: CLI) -> None:
    output = fxpipe("run", MODEL, "--chunks", "4", "--steps", "3", "--out", "out").output
    losses = re.findall(r"^step (\d): loss ([\d.e-]+), ", output, re.MULTILINE)
    assert [number for number, _ in losses] == ["0", "1", "2"]
    assert len({loss for _, loss in losses}) == 1  # nothing is optimised
    assert "measured / predicted" in output
    assert re.search(r"1f1b, 4 micro-batches, measured: step .*, bubble", output)
    svg = Path("out/timeline.svg").read_text()
    assert ">predicted<" in svg
    assert ">measured<" in svg
    events = json.loads(Path("out/timeline.json").read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {f"{stage}{kind}{m}" for stage in (0, 1) for kind in "FB" for m in range(4)} <= names


def test_a_saved_plan_and_another_schedule(fxpipe: CLI) -> None:
    fxpipe("plan", MODEL, "--cuts", "layers.1", "--chunks", "4", "--save", "plan.json")
    words = ("--load", "plan.json", "--chunks", "4", "--schedule", "gpipe", "--steps", "1")
    assert "gpipe, 4 micro-batches, measured" in fxpipe("run", MODEL, *words).output


def test_several_stages_per_device(fxpipe: CLI) -> None:
    assert "step 0" in fxpipe("run", MODEL, "--stages", "4", "--steps", "1", "--chunks", "2").output
    result = fxpipe("run", MODEL, "--stages", "3", code=2)
    assert "3 stages do not divide over 2 devices" in result.output


def test_a_model_without_a_floating_output_is_refused(fxpipe: CLI) -> None:
    result = fxpipe("run", "tests.unit.cli.models:Indices", "-i", "f32[4,8]", code=1)
    assert "ExecutionError: the model has no floating output" in result.output
