from __future__ import annotations

from collections.abc import Sequence

from fxpipe.ir.findings import Fate, SpanFinding
from fxpipe.viz.module_tree import ModuleRow, module_rows


def span(path: str, parent: int | None, nodes: int = 1, **changes: object) -> SpanFinding:
    return SpanFinding(path, 0, "Block", parent, nodes, **changes)


def network(blocks: int = 3) -> list[SpanFinding]:
    """A model whose blocks have two modules each."""
    spans = [span("", None, 4 * blocks, share=1.0)]
    for block in range(blocks):
        at = len(spans)
        spans.append(span(f"h.{block}", 0, 4, share=1 / blocks))
        spans += [span(f"h.{block}.{name}", at, 2) for name in ("attn", "mlp")]
    return spans


def names(rows: Sequence[ModuleRow]) -> list[str]:
    return [row.name for row in rows]


def with_fates(
    spans: Sequence[SpanFinding], *fates: tuple[Fate, tuple[int, ...]]
) -> list[SpanFinding]:
    """The spans with a fate and stages each."""
    return [
        SpanFinding(s.path, s.call, s.module_class, s.parent, s.nodes, s.share, fate, stages)
        for s, (fate, stages) in zip(spans, fates, strict=True)
    ]


def test_equal_neighbours_are_one_row_and_sum_up() -> None:
    rows = list(module_rows(network()))
    assert names(rows) == ["(the model)", "  h.0 … h.2", "    attn", "    mlp"]
    assert [row.calls for row in rows] == [1, 3, 3, 3]
    assert [row.nodes for row in rows] == [12, 12, 6, 6]
    assert [row.share for row in rows] == ["100.0%", "100.0%", "", ""]


def test_neighbours_that_differ_inside_are_not_equal() -> None:
    spans = network(2)
    spans[-1] = span("h.1.mlp", spans[-1].parent, 5)
    assert names(list(module_rows(spans)))[1:] == [
        "  h.0", "    attn", "    mlp", "  h.1", "    attn", "    mlp",
    ]  # fmt: skip
    assert names(list(module_rows(spans, depth=1)))[1:] == ["  h.0 … h.1"]


def test_depth_leaves_out_and_counts() -> None:
    rows = list(module_rows(network(), depth=1))
    assert [(row.name, row.note) for row in rows] == [
        ("(the model)", "called"),
        ("  h.0 … h.2", "called (6 calls inside)"),
    ]
    (row,) = module_rows(network(), depth=0)
    assert row.note == "called (9 calls inside)"


def test_without_a_plan_three_levels_are_listed() -> None:
    spans = [span("", None), *(span(".".join("abcde"[: n + 1]), n) for n in range(5))]
    assert names(list(module_rows(spans))) == ["(the model)", "  a", "    b", "      c"]
    assert len(list(module_rows(spans, depth=9))) == 6


def test_what_is_called_covers_what_is_inside() -> None:
    called, inside = (Fate.CALLED, (0,)), (Fate.INSIDE, (0,))
    later, within = (Fate.CALLED, (1,)), (Fate.INSIDE, (1,))
    fates = [(Fate.DIVIDED, (0, 1)), called, inside, inside, called, inside, inside]
    rows = list(module_rows(with_fates(network(), *fates, later, within, within)))
    assert [(row.name, row.note) for row in rows] == [
        ("(the model)", "stages 0, 1: divided, 1 starts inside"),
        ("  h.0 … h.1", "stage 0: called, with 4 calls inside"),
        ("  h.2", "stage 1: called, with 2 calls inside"),
    ]


def test_reasons() -> None:
    flat = span("a", None, fate=Fate.FLAT, stages=(2,), reason="it reads y")
    empty = span("b", None, fate=Fate.EMPTY)
    divided = span("c", None, fate=Fate.DIVIDED, stages=(0, 1, 2))
    assert [row.note for row in module_rows([flat, empty, divided])] == [
        "stage 2: written out, since it reads y",
        "empty",
        "stages 0, 1, 2: divided, 1 and 2 start inside",
    ]
    (row,) = module_rows([span("a", None, reason="it reads y")])
    assert row.note == "written out, since it reads y"


def test_several_calls_of_one_module_have_its_name() -> None:
    spans = [span("", None, 2), *(SpanFinding("shared", n, "Block", 0, 1) for n in range(4))]
    assert [(row.name, row.calls) for row in module_rows(spans)] == [
        ("(the model)", 1),
        ("  shared", 4),
    ]


def test_a_module_called_from_elsewhere_keeps_its_path() -> None:
    spans = [span("", None), span("decoder", 0), span("encoder.embed", 1)]
    assert names(list(module_rows(spans)))[2] == "    encoder.embed"
