from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

CLI = Callable[..., Result]


def test_every_stage_becomes_a_file(fxpipe: CLI) -> None:
    output = fxpipe(
        "stages", "tests.unit.cli.models:with_args", "--cuts", "layers.2", "--out", "here"
    ).output
    assert output == "wrote here/stage_0.py\nwrote here/stage_1.py\n"
    for stage in range(2):
        tree = ast.parse(Path(f"here/stage_{stage}.py").read_text())
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        assert [c.name for c in classes] == [f"Stage{stage}"]


def test_cuts_say_how_many(fxpipe: CLI) -> None:
    fxpipe(
        "stages", "tests.unit.cli.models:with_args", "--cuts", "layers.1,layers.2", "--out", "three"
    )
    assert len(list(Path("three").glob("*.py"))) == 3
