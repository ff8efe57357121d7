from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

from fxpipe.ir.findings import Fate, Findings
from fxpipe.ir.serial import from_json

CLI = Callable[..., Result]

SKIP = "tests.unit.cli.models:with_kwargs"
TELLER = "tests.unit.findings.models:teller"


def test_what_was_found(fxpipe: CLI) -> None:
    output = fxpipe("trace", SKIP).output
    assert "Capture of tests.unit.cli.models.Skip (train, real run, batch 8)" in output
    lines = [line.split() for line in output.splitlines()]
    for name in ("x", "mask"):
        assert [name, "f32[8,8]", "cut", "along", "dimension", "0"] in lines
    assert "CostProfile (estimate" in output
    assert "Legal cuts: 8 of 8 positions" in output


def test_nodes(fxpipe: CLI) -> None:
    words = ("trace", "tests.unit.cli.models:Words", "-i", "i64[4,3]", "--high", "10", "--nodes")
    lines = fxpipe(*words, "--eval", "--mode", "fake").output.splitlines()
    assert "(eval, fake run" in lines[0]
    assert sum("f32[4,3," in line for line in lines) == 3


def test_dynamic_dimensions_are_free(fxpipe: CLI) -> None:
    words = ("trace", "tests.unit.cli.models:Words", "-i", "i64[4,3]", "--high", "10")
    output = fxpipe(*words, "--dynamic", "ids:1=length").output
    assert "i64[4,3]  cut along dimension 0  1 (length)" in output


def test_leaves_and_decisions(fxpipe: CLI) -> None:
    output = fxpipe("trace", TELLER).output
    assert "router (Router): its Python code depends on values of tensors" in output
    assert "return x * 2 if self.gate(x).sum() > 0 else x" in output
    assert "bool(mask.float().mean().gt(limit)) was True" in output


def test_stages_tell_what_is_called(fxpipe: CLI) -> None:
    output = fxpipe("trace", TELLER, "--cuts", "blocks.1").output
    assert "PartitionPlan: 2 stages" in output
    assert "stages 0, 1: divided, 1 starts inside" in output
    assert "stage 0: called" in output
    assert "3 stages" in fxpipe("trace", TELLER, "--stages", "3").output


def test_depth(fxpipe: CLI) -> None:
    output = fxpipe("trace", TELLER, "--depth", "0").output
    assert "called (3 calls inside)" in output


def test_measured_costs(fxpipe: CLI) -> None:
    assert "CostProfile (measure" in fxpipe("trace", SKIP, "--costs", "measure").output


def test_json_is_for_programs(fxpipe: CLI) -> None:
    found = from_json(fxpipe("trace", TELLER, "--cuts", "blocks.1", "--json").stdout, Findings)
    assert [leaf.path for leaf in found.leaves] == ["router"]
    assert found.spans[0].fate is Fate.DIVIDED
    assert found.largest is not None


def test_impossible_cuts_are_one_message(fxpipe: CLI) -> None:
    result = fxpipe("trace", SKIP, "--stages", "99", code=1)
    assert "fxpipe: InfeasiblePlanError" in result.output
    fxpipe("trace", SKIP, "--stages", "0", code=2)
