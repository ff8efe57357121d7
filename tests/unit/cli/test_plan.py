from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from fxpipe.ir.plan import PartitionPlan
from fxpipe.ir.serial import from_json

CLI = Callable[..., Result]
MODEL = "tests.unit.cli.models:with_args"


def test_tables_and_prediction(fxpipe: CLI) -> None:
    output = fxpipe("plan", MODEL, "--chunks", "4", "--costs", "estimate").output
    assert "Capture of tests.unit.cli.models.Skip (train, real run, batch 2)" in output
    header = next(line for line in output.splitlines() if "starts at" in line)
    assert re.split(r"\s{2,}", header.strip())[3:8] == [
        "params",
        "forward",
        "backward",
        "share",
        "kept",
    ]
    assert re.search(
        r"1f1b, 4 micro-batches, predicted: step .*, bubble [\d.]+% of the total", output
    )


def test_the_schedule_says_who_has_which_stage(fxpipe: CLI) -> None:
    """A V: the skip from stage 0 to stage 3 and the value between 1 and 2 stay on their ranks."""
    cuts = ("--cuts", "layers.1,layers.2,layers.3", "--stages", "4", "--chunks", "4")
    outputs = [
        fxpipe("plan", MODEL, *cuts, "--costs", "estimate", "--schedule", name).output
        for name in ("1f1b", "zb-v")
    ]
    homes = [re.findall(r"^ +([0-3]) +([01])  +", text, re.MULTILINE)[:4] for text in outputs]
    assert [int(rank) for _, rank in homes[0]] == [0, 1, 0, 1]
    assert [int(rank) for _, rank in homes[1]] == [0, 1, 1, 0]
    moved = [re.search(r"(\S+) B sent .* (\S+) B handed over within a rank", t) for t in outputs]
    loop, fold = [tuple(map(int, found.groups())) for found in moved if found]
    assert loop[0] > fold[0]
    assert fold[1] > loop[1]
    assert sum(loop) == sum(fold)


def test_cuts_are_the_users(fxpipe: CLI) -> None:
    fxpipe(
        "plan",
        MODEL,
        "--cuts",
        "layers.1, layers.3",
        "--stages",
        "3",
        "--costs",
        "estimate",
        "--save",
        "plan.json",
    )
    plan = from_json(Path("plan.json").read_text(), PartitionPlan)
    assert plan.num_stages == 3
    assert len(plan.starts) == 2


def test_a_saved_plan_is_taken_again(fxpipe: CLI) -> None:
    first = fxpipe(
        "plan", MODEL, "--cuts", "layers.1", "--costs", "estimate", "--save", "plan.json"
    )
    again = fxpipe("plan", MODEL, "--load", "plan.json", "--costs", "estimate")
    assert again.output == first.output.replace("wrote plan.json\n", "")


def test_a_plan_of_another_model_is_refused(fxpipe: CLI) -> None:
    fxpipe("plan", MODEL, "--costs", "estimate", "--save", "plan.json")
    result = fxpipe(
        "plan",
        "tests.unit.cli.models:Words",
        "-i",
        "i64[4,3]",
        "--high",
        "10",
        "--load",
        "plan.json",
        code=1,
    )
    assert "IllegalPlanError" in result.output
    assert "Traceback" not in result.output


def test_cuts_that_mean_nothing_are_refused(fxpipe: CLI) -> None:
    result = fxpipe("plan", MODEL, "--cuts", "layer.7", "--costs", "estimate", code=1)
    assert "PartitionError" in result.output
    assert "'layer.7'" in result.output


def test_more_stages_than_the_model_has(fxpipe: CLI) -> None:
    result = fxpipe("plan", MODEL, "--stages", "50", "--costs", "estimate", code=1)
    assert "InfeasiblePlanError: 50 stages were asked for" in result.output


def test_choices_that_do_not_exist(fxpipe: CLI) -> None:
    assert (
        "'guess' is not one of 'measure', 'estimate'"
        in fxpipe("plan", MODEL, "--costs", "guess", code=2).output
    )
    assert (
        "there is no schedule '2f2b'; did you mean 1f1b?"
        in fxpipe("plan", MODEL, "--costs", "estimate", "--schedule", "2f2b", code=2).output
    )
    assert (
        "tests.unit.cli.models has no 'gone'"
        in fxpipe("plan", "tests.unit.cli.models:gone", code=2).output
    )
