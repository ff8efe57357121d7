from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

CLI = Callable[..., Result]


def test_what_was_found(fxpipe: CLI) -> None:
    output = fxpipe("trace", "tests.unit.cli.models:with_kwargs").output
    assert "Capture of tests.unit.cli.models.Skip (train, real run, batch 8)" in output
    assert "input x: f32[8,8], cut along dimension 0" in output
    assert "input mask: f32[8,8], cut along dimension 0" in output


def test_nodes(fxpipe: CLI) -> None:
    words = ("trace", "tests.unit.cli.models:Words", "-i", "i64[4,3]", "--high", "10", "--nodes")
    lines = fxpipe(*words, "--eval", "--mode", "fake").output.splitlines()
    assert "(eval, fake run" in lines[0]
    assert sum("f32[4,3," in line for line in lines) == 3


def test_dynamic_dimensions_are_free(fxpipe: CLI) -> None:
    words = ("trace", "tests.unit.cli.models:Words", "-i", "i64[4,3]", "--high", "10")
    output = fxpipe(*words, "--dynamic", "ids:1=length").output
    assert "cut along dimension 0, dimension 1 is free (length)" in output
