"""Random modules: a capture computes what the module computes, and so does a pipeline of two stages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import fxpipe
from fxpipe.analysis.cuts import legal_cuts
from fxpipe.capture.trace import trace
from tests.exact import Kind, assert_exact, mean_square
from tests.module_steps import RANDOM
from tests.strategies_modules import FORMS, Block, blocks, build, inputs
from tests.unit.capture.agree import assert_agrees

CALLS = st.tuples(st.sampled_from(("positional", *FORMS)), st.integers(1, 3))
MODES = st.tuples(st.sampled_from(["real", "fake"]), st.booleans())


def works_in_eager(model: nn.Module, args: tuple[Any, ...]) -> bool:
    """Whether its backward runs: some writes in place come too late for that."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        mean_square(model(*args)).backward()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return False
    finally:
        model.zero_grad()
        model.load_state_dict(state)
    return True


def check_capture(block: Block, call: tuple[str, int], mode: tuple[str, bool]) -> None:
    kind, training = mode
    model = build(block).train(training)
    args = inputs(*call, rows=4)
    assume(works_in_eager(build(block).train(training), inputs(*call, rows=4)))
    capture = trace(model, args, mode=kind)
    assert_agrees(capture, model, args)
    assert_agrees(capture, model, args, rows=3)


@settings(max_examples=40)
@given(blocks(), CALLS, MODES)
def test_captures_compute_what_modules_compute(
    block: Block, call: tuple[str, int], mode: tuple[str, bool]
) -> None:
    check_capture(block, call, mode)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # two minutes on a machine that does nothing else
@settings(max_examples=1000)
@given(blocks(), CALLS, MODES)
def test_a_thousand_captures_compute_what_modules_compute(
    block: Block, call: tuple[str, int], mode: tuple[str, bool]
) -> None:
    check_capture(block, call, mode)


@settings(max_examples=25)
@given(blocks(without=RANDOM), CALLS, st.sampled_from(["never", "always"]), st.data())
def test_pipelines_compute_what_modules_compute(
    block: Block, call: tuple[str, int], recompute: str, data: st.DataObject
) -> None:
    kind = Kind(lambda: build(block), lambda rows: (inputs(*call, rows=rows), {}), tied=None)
    args, _ = kind.data(4)
    assume(works_in_eager(build(block), args))
    capture = fxpipe.trace(kind.model(), args, verify=False)
    cuts = legal_cuts(capture)
    assume(cuts)
    cut = data.draw(st.sampled_from(cuts))
    start = "%" + capture.body[cut].name
    assert_exact(kind, 2, cuts=[start], recompute=recompute, backend="inline", verify=False)
