from __future__ import annotations

import pytest

from fxpipe.codegen.names import RESERVED, Names, legal, quoted


@pytest.mark.parametrize(
    ("wish", "name"),
    [
        ("conv", "conv"),
        ("down_1.convs.0", "down_1_convs_0"),
        ("0.weight", "layer_0_weight"),
        ("a-b", "a_b"),
        ("", "value"),
    ],
)
def test_legal(wish: str, name: str) -> None:
    assert legal(wish) == name
    assert name.isidentifier()


def test_names_are_unique_and_stable() -> None:
    wishes = ["a.b", "a_b", "a_b", "a_b_1"]
    first = [Names().take("a.b")]
    names = Names()
    taken = [names.take(wish) for wish in wishes]
    assert taken == ["a_b", "a_b_1", "a_b_2", "a_b_1_1"]
    assert taken[:1] == first
    again = Names()
    assert [again.take(wish) for wish in wishes] == taken


@pytest.mark.parametrize("word", ["lambda", "None", "self", "stash", "pop", "torch", "F", "len"])
def test_words_of_the_language_are_not_taken(word: str) -> None:
    assert Names(RESERVED).take(word) == f"{word}_1"


@pytest.mark.parametrize("text", ["plain", "it's", 'say "x"', "both ' and \"", "back\\slash", "\n"])
def test_quoted(text: str) -> None:
    assert eval(quoted(text)) == text


def test_double_quotes_where_possible() -> None:
    assert quoted("plain") == '"plain"'
