from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fxpipe.cli.unused import refuse_unused

app = typer.Typer()


@app.command()
def command(
    context: typer.Context,
    rows: Annotated[int, typer.Option("--rows", "-r")] = 4,
    colour: Annotated[bool, typer.Option("--color/--no-color")] = True,
) -> None:
    refuse_unused(context, {"rows", "colour"}, "changes nothing here")


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--rows", "4"], "--rows"), (["-r", "1"], "--rows"), (["--no-color"], "--color")],
)
def test_what_is_given_is_refused_also_with_its_default(words: list[str], named: str) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert f"{named} changes nothing here" in result.output


def test_defaults_are_not() -> None:
    assert CliRunner().invoke(app, []).exit_code == 0
