from __future__ import annotations

import pytest

from fxpipe.capture.fallback import Decisions, KeepWholeError, LookInsideError
from fxpipe.errors import CaptureError


def keep(path: str) -> KeepWholeError:
    return KeepWholeError("it decides", path, "model.py:3 in forward: if x", "__bool__")


def look(path: str) -> LookInsideError:
    return LookInsideError("it is handed a Cache", path, "model.py:7 in forward: f(x)")


def test_innermost_module_is_kept_whole() -> None:
    decisions = Decisions()
    decisions.learn(keep("a.b"), is_layer=False)
    assert list(decisions.leaves) == ["a.b"]
    assert decisions.state == (("a.b",), (), False, False)


def test_parent_is_next() -> None:
    decisions = Decisions()
    decisions.learn(keep("a.b"), is_layer=False)
    decisions.learn(keep("a.b"), is_layer=False)
    assert list(decisions.leaves) == ["a.b", "a"]


def test_leaf_of_the_policy_is_looked_into() -> None:
    decisions = Decisions()
    decisions.learn(look("a.b"), is_layer=False)
    assert list(decisions.inside) == ["a.b"]


def test_layers_are_never_looked_into_nor_what_had_to_stay_whole() -> None:
    decisions = Decisions()
    decisions.learn(look("a.linear"), is_layer=True)
    assert list(decisions.leaves) == ["a"]
    decisions = Decisions()
    decisions.learn(keep("a.b"), is_layer=False)
    decisions.learn(look("a.b"), is_layer=False)
    assert list(decisions.leaves) == ["a"]
    assert "would have to stay whole, because it decides" in decisions.leaves["a"].reason


def test_whole_model_is_an_error_unless_it_is_a_layer() -> None:
    with pytest.raises(CaptureError) as caught:
        Decisions().learn(keep(""), is_layer=False)
    text = str(caught.value)
    for part in ("it decides", "model's own forward", "model.py:3", "__bool__", "What to do"):
        assert part in text
    decisions = Decisions(whole_root=True)
    decisions.learn(keep(""), is_layer=False)
    assert list(decisions.leaves) == [""]


def test_no_parent_is_left() -> None:
    decisions = Decisions()
    decisions.learn(keep("a"), is_layer=False)
    with pytest.raises(CaptureError, match="'a'"):
        decisions.learn(look("a"), is_layer=False)
