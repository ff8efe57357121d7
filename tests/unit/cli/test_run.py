from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

CLI = Callable[..., Result]
MODEL = "tests.unit.cli.models:with_args"


def test_steps_are_measured_beside_the_prediction(fxpipe: CLI) -> None:
    output = fxpipe("run", MODEL, "--chunks", "4", "--steps", "3").output
    losses = re.findall(r"^step (\d): loss ([\d.e-]+), ", output, re.MULTILINE)
    assert [number for number, _ in losses] == ["0", "1", "2"]
    assert len({loss for _, loss in losses}) == 1  # nothing is optimised
    assert "\n1f1b, 4 micro-batches, the fastest of 3 steps:\nmeasured   step " in output
    assert re.search(
        r"^predicted  step .*, bubble .* of the total \(.* of ideal\)", output, re.MULTILINE
    )
    assert re.search(r"^measured / predicted: [\d.]+$", output, re.MULTILINE)
    head = "rank busy bubble imbalance waiting transfer overhead".split()
    assert head in [line.split() for line in output.splitlines()]
    rows = [
        line.split()[-20:] for line in output.splitlines() if re.match(r" +\d? +(mea|pre)", line)
    ]
    assert [row[0] + row[1] for row in rows[::2]] == ["0measured", "1measured"]
    assert [row[0] for row in rows[1::2]] == ["predicted", "predicted"]
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("words", "folder"), [(("--timeline",), "."), (("--out", "out"), "out")])
def test_timelines_are_drawn_one_over_the_other(
    fxpipe: CLI, words: tuple[str, ...], folder: str
) -> None:
    fxpipe("run", MODEL, "--chunks", "4", "--steps", "1", *words)
    svg = Path(folder, "timeline.svg").read_text()
    assert svg.count(">predicted<") == 1 + 2  # the title, and under each rank
    assert svg.count(">measured<") == 1
    events = json.loads(Path(folder, "timeline.json").read_text())["traceEvents"]
    tracks = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert {(rank, name) for rank in (0, 1) for name in ("measured", "predicted")} <= tracks
    for track in (0, 2):
        names = {event["name"] for event in events if event["ph"] == "X" and event["tid"] == track}
        assert {f"{stage}{kind}{m}" for stage in (0, 1) for kind in "FB" for m in range(4)} <= names


def test_a_saved_plan_and_another_schedule(fxpipe: CLI) -> None:
    fxpipe("plan", MODEL, "--cuts", "layers.1", "--chunks", "4", "--save", "plan.json")
    words = ("--load", "plan.json", "--chunks", "4", "--schedule", "GPipe", "--steps", "1")
    assert "gpipe, 4 micro-batches, one step:\nmeasured " in fxpipe("run", MODEL, *words).output


def test_several_stages_per_device(fxpipe: CLI) -> None:
    assert "step 0" in fxpipe("run", MODEL, "--stages", "4", "--steps", "1", "--chunks", "2").output
    result = fxpipe("run", MODEL, "--stages", "3", code=2)
    assert "3 stages do not divide over 2 devices" in result.output


def test_a_model_without_a_floating_output_is_refused(fxpipe: CLI) -> None:
    result = fxpipe("run", "tests.unit.cli.models:Indices", "-i", "f32[4,8]", code=1)
    assert "ExecutionError: the model has no floating output" in result.output


def test_forwards_alone_and_a_folded_schedule(fxpipe: CLI) -> None:
    words = ("run", MODEL, "--chunks", "4", "--steps", "1", "--schedule")
    assert "forward, 4 micro-batches, one step" in fxpipe(*words, "forward").output
    assert "zb-v, 4 micro-batches, one step" in fxpipe(*words, "zb-v").output
