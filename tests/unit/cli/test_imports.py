from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer

from fxpipe.cli.imports import import_object


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_the_current_folder_is_importable(folder: Path) -> None:
    (folder / "made_here.py").write_text("class A:\n    b = 3\n")
    assert import_object("made_here:A.b", "model") == 3


@pytest.mark.parametrize("text", ["math", "math:", ":pi", ""])
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"is no model: expected package\.module:name"):
        import_object(text, "model")


def test_a_missing_module_or_name_is_named(folder: Path) -> None:
    with pytest.raises(typer.BadParameter, match="no module 'not_there'"):
        import_object("not_there.at_all:x", "model")
    with pytest.raises(typer.BadParameter, match="math has no 'pie'"):
        import_object("math:pie", "model")


def test_what_a_module_itself_cannot_import_is_its_own_error(folder: Path) -> None:
    (folder / "needs_more.py").write_text("import not_there_either\n")
    with pytest.raises(ModuleNotFoundError, match="not_there_either"):
        import_object("needs_more:x", "model")
