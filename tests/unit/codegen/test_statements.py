from __future__ import annotations

import torch
import torch.fx

from fxpipe.codegen.statements import Statement, releases, write_body
from fxpipe.codegen.writer import Writer
from fxpipe.ir.spec import TensorSpec

SPEC = TensorSpec((2,), "float32")


def nodes(**storages: tuple[int, ...]) -> list[torch.fx.Node]:
    graph = torch.fx.Graph()
    made = []
    for name, held in storages.items():
        node = graph.create_node("call_function", torch.relu, (), name=name)
        node.meta.update(spec=SPEC, storages=held)
        made.append(node)
    return made


def names(freed) -> list[list[str]]:
    return [[node.name for node in group] for group in freed]


def test_let_go_after_the_last_use() -> None:
    a, b, c = nodes(a=(1,), b=(2,), c=(3,))
    lines = [
        Statement("f()", (a,)),
        Statement("g(a)", (b,), (a,)),
        Statement("h(a, b)", (c,), (a, b)),
    ]
    assert names(releases(lines, (c,))) == [[], [], ["a", "b"]]


def test_views_go_with_what_they_look_at() -> None:
    base, view, other = nodes(base=(1,), view=(1,), other=(2,))
    lines = [
        Statement("f()", (base,)),
        Statement("base.view(1)", (view,), (base,)),
        Statement("g()", (other,)),
        Statement("h(view)", (), (view,)),
        Statement("h(other)", (), (other,)),
    ]
    assert names(releases(lines, ())) == [[], [], [], ["base", "view"], ["other"]]


def test_a_value_with_several_storages_ties_them_together() -> None:
    a, b, pair, alone = nodes(a=(1,), b=(2,), pair=(1, 2), alone=(3,))
    lines = [
        Statement("f()", (a,)),
        Statement("f()", (b,)),
        Statement("f()", (alone,)),
        Statement("(a, b)", (pair,), (a, b)),
        Statement("g(alone)", (), (alone,)),
        Statement("g(pair)", (), (pair,)),
    ]
    assert names(releases(lines, ())) == [[], [], [], [], ["alone"], ["a", "b", "pair"]]


def test_what_a_result_or_an_argument_holds_is_left_alone() -> None:
    argument, view, made, part = nodes(argument=(1,), view=(1,), made=(2,), part=(2,))
    lines = [
        Statement("argument.view(1)", (view,), (argument,)),
        Statement("f(view)", (made,), (view,)),
        Statement("made[0]", (part,), (made,)),
    ]
    assert names(releases(lines, (part,))) == [[], [], []]


def test_numbers_are_not_worth_a_line() -> None:
    (size,) = nodes(size=())
    size.meta["spec"] = 3
    lines = [Statement("x.size(0)", (size,)), Statement("f(size)", (), (size,))]
    assert names(releases(lines, ())) == [[], []]


def test_body() -> None:
    a, b, c, unread = nodes(a=(1,), b=(2,), c=(3,), unread=(4,))
    lines = [
        Statement('pop("a")', (a,)),
        Statement("f(a)", (b,), (a,), section="", comment="m.py:1 in forward", keyed=("#0", 2)),
        Statement("note(b)", (unread,), (b,), section="inner", comment="m.py:2 in forward"),
        Statement("g(b)", (c,), (b,), section="inner", comment="m.py:2 in forward", origin="inner"),
    ]
    out = Writer()
    write_body(lines, (c,), lambda node: node.name, out)
    assert out.text == (
        'a = pop("a")\n'
        'with self.keyed("#0", 2):\n'
        "    b = f(a)  # m.py:1 in forward\n"
        "del a\n"
        "# in inner:\n"
        "note(b)  # m.py:2 in forward\n"
        "c = g(b)\n"
        "return (c,)\n"
    )
    assert out.origins == {7: "inner"}
