from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fxpipe.ir.schedule import Schedule
from fxpipe.ir.serial import from_json
from fxpipe.ir.torch_order import from_torch_csv
from fxpipe.schedules.registry import SCHEDULES

CLI = Callable[..., Result]
ROOT = Path(__file__).parents[3]


def test_a_grid_its_bubbles_and_what_is_kept(fxpipe: CLI) -> None:
    output = fxpipe("schedule", "1f1b", "--ranks", "2", "--micro-batches", "3").output
    assert (
        output
        == """\
1f1b: 2 ranks, 2 stages, 3 micro-batches; a rank's times per micro-batch: F 1, I 1, W 1

time    0              5              10
rank 0  F0 F1 .  .  B0 -  F2 B1 -  .  B2 -
rank 1  .  F0 B0 -  F1 B1 -  F2 B2 -  .  .

F forward  B backward

  step                                    12  first start to last end
  bubble, fraction of the total        25.0%  idle / (ranks × step)
  bubble, ratio to the ideal           33.3%  idle / busy (Megatron-LM's)
  bubble, fraction of the device span  25.0%  each rank from its own first action (zero-bubble papers')

  rank  busy  idle  bubble  kept  closed form
  ----  ----  ----  ------  ----  -----------
     0     9     3   25.0%     2            2
     1     9     3   25.0%     1            1

kept: activations for backward at the peak, one being those of all stages of a rank
closed form: min(p - r, m), of p ranks, v stages per rank, m micro-batches, rank r
"""
    )


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_schedule_is_drawn_with_its_closed_form(fxpipe: CLI, name: str) -> None:
    output = fxpipe("schedule", name, "--no-color").output
    assert output.startswith(f"{name}: 4 ranks, ")
    assert "8 micro-batches" in output
    assert re.search(r"^rank 3  ", output, re.MULTILINE)
    assert "closed form: " in output
    assert "none for these counts" not in output


def test_files(fxpipe: CLI) -> None:
    words = ("--svg", "a/b.svg", "--chrome", "c.json", "--text", "d.txt", "--json", "e.json")
    output = fxpipe("schedule", "zb-v", "-r", "2", "-m", "4", *words, "--csv", "f.csv").output
    assert output.count("wrote ") == 5
    schedule = SCHEDULES["zb-v"](4, 2, 4)
    assert ">zb-v: 2 ranks, 4 stages, 4 micro-batches<" in Path("a/b.svg").read_text()
    assert json.loads(Path("c.json").read_text())["traceEvents"]
    assert Schedule.from_text(Path("d.txt").read_text(), "zb-v") == schedule
    assert from_json(Path("e.json").read_text(), Schedule) == schedule
    assert from_torch_csv(Path("f.csv").read_text(), "zb-v") == schedule


@pytest.mark.parametrize("file", ["mine.txt", "mine.json", "mine.csv"])
def test_what_was_written_is_read_again(fxpipe: CLI, file: str) -> None:
    fxpipe("schedule", "1f1b", "-r", "2", "-m", "3", f"--{file[5:].replace('txt', 'text')}", file)
    output = fxpipe("schedule", file).output
    assert "2 ranks, 2 stages, 3 micro-batches" in output
    assert "rank 1  .  F0 B0 -  F1 B1 -  F2 B2 -" in output


def test_an_illegal_schedule_says_why(fxpipe: CLI) -> None:
    Path("mine.txt").write_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0\n")
    result = fxpipe("schedule", "mine.txt", code=1)
    assert "fxpipe: DeadlockError: " in result.output
    assert "rank 1 waits at position 0" in result.output


def test_a_function_of_ones_own(fxpipe: CLI) -> None:
    words = ("tests.unit.cli.models:backwards_schedule", "-r", "2", "-m", "2")
    assert "rank 0  F0 F1 .  .  .  B0 -  B1 -" in fxpipe("schedule", *words).output


def test_without_a_name_there_is_a_list(fxpipe: CLI) -> None:
    listed = fxpipe("schedule").output
    assert listed == fxpipe("schedule", "--list").output
    for name in SCHEDULES:
        assert re.search(rf"^  {name} ", listed, re.MULTILINE)


def test_costs_placement_and_transfers(fxpipe: CLI) -> None:
    words = ("-r", "2", "-m", "2", "--placement", "fold", "--backward", "3", "--transfer", "0.5")
    output = fxpipe("schedule", "gpipe", *words).output
    assert "2 ranks, 4 stages, 2 micro-batches" in output
    assert "F 1, I 1.5, W 1.5, transfer 0.5" in output
    assert "closed form" not in output


def test_a_limit_of_memory(fxpipe: CLI) -> None:
    fxpipe("schedule", "1f1b", "--memory", "4")
    result = fxpipe("schedule", "1f1b", "--memory", "3", code=1)
    assert "rank 0, position 3: 0F3 keeps 4 for backward, and 3 are allowed" in result.output


def test_search_prints_its_gap_and_what_it_found(fxpipe: CLI) -> None:
    words = ("-r", "2", "-m", "4", "--memory", "2", "--seconds", "0.5", "--text", "best.txt")
    output = fxpipe("schedule", "search", *words).output
    assert re.search(r"^best with a name: \S+, [\d.]+$", output, re.MULTILINE)
    assert re.search(r"^found: [\d.]+, [\d.]+% above [\d.]+, which no order", output, re.MULTILINE)
    assert "4 micro-batches; a rank's times" in output
    assert Schedule.from_text(Path("best.txt").read_text()).num_ranks == 2


def test_colours_are_for_terminals_or_for_those_who_ask(fxpipe: CLI) -> None:
    assert "\x1b[" not in fxpipe("schedule", "1f1b").output
    assert "\x1b[38;5;16;48;5;153m" in fxpipe("schedule", "1f1b", "--color").output


def test_what_cannot_be_written_is_said(fxpipe: CLI) -> None:
    Path("file").write_text("")
    result = fxpipe("schedule", "1f1b", "--svg", "file/step.svg", code=2)
    assert "cannot write file/step.svg" in result.output
    result = fxpipe("schedule", "dualpipe", "--csv", "x.csv", code=1)
    assert "FormatError: torch runs a stage on one rank" in result.output


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("hanyo",), 2, "did you mean hanayo?"),
        (("dualpipe", "-r", "3"), 1, "'dualpipe' needs an even number of ranks, got 3"),
        (("1f1b", "-r", "4", "-s", "3"), 1, "a rank would have nothing to do"),
        (("1f1b", "-m", "0"), 2, "greater than or equal to 1"),
        (("zb-v", "--placement", "loop"), 2, "zb-v decides itself what runs on which rank"),
        (("1f1b", "--forward", "-1"), 2, "costs cannot be negative"),
        (("gone.txt",), 2, "there is no file 'gone.txt'"),
    ],
)
def test_refusals(fxpipe: CLI, words: tuple[str, ...], code: int, message: str) -> None:
    output = fxpipe("schedule", *words, code=code).output
    assert message in " ".join(output.split())


@pytest.mark.parametrize(
    "words", ["'1f1b'", "'zb-v', '--svg', 'a.svg'", "'search', '-r', '2', '-m', '2'"]
)
def test_torch_is_not_loaded(words: str, tmp_path: Path) -> None:
    code = (
        "import sys; from fxpipe.cli.main import app; "
        f"app(['schedule', {words}], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_docs_show_what_is_printed(fxpipe: CLI) -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert "fxpipe schedule 1f1b --ranks 3 --micro-batches 4\n```\n" in page
    output = fxpipe("schedule", "1f1b", "--ranks", "3", "--micro-batches", "4").output
    assert f"```text\n{output}```\n" in page


def test_an_order_that_changes_the_last_bits_says_so(fxpipe: CLI) -> None:
    Path("mine.txt").write_text("0F0 0F1 0B1 0B0\n")
    assert "out of ascending order" in fxpipe("schedule", "mine.txt").output
    assert "two copies of every stage add up" in fxpipe("schedule", "chimera").output
    assert "rounding" not in fxpipe("schedule", "1f1b").output
