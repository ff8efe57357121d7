from __future__ import annotations

from fxpipe.codegen.writer import Writer


def test_blocks_indent_and_lines_know_their_origin() -> None:
    out = Writer()
    out.line("import torch")
    out.line()
    with out.block("class A:", comment="why"):
        with out.block("def f(self):"):
            out.line("return 1", origin="a.b, file.py:3")
        out.line("x = 2")
    assert out.text == (
        "import torch\n\nclass A:  # why\n    def f(self):\n        return 1\n    x = 2\n"
    )
    assert out.origins == {5: "a.b, file.py:3"}
