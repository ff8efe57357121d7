from __future__ import annotations

from fxpipe.ir.action import Compute
from fxpipe.ir.spec import TensorSpec
from fxpipe.ir.stage import HOST, Edge, StageGraph
from fxpipe.schedules.depend import MAKES, Result, needs

FLOAT = TensorSpec((2,), "float32", requires_grad=True)
MASK = TensorSpec((2,), "bool")

GRAPH = StageGraph(
    4,
    (Edge("image", HOST, (0, 2), FLOAT), Edge("label", HOST, (3,), MASK)),
    (
        Edge("x0", 0, (1,), FLOAT),
        Edge("skip", 0, (2, 3), FLOAT),
        Edge("mask", 1, (3,), MASK),
        Edge("x1", 1, (2,), FLOAT),
        Edge("x2", 2, (3,), FLOAT),
    ),
)


def _needs(text: str) -> list[tuple[Result, int]]:
    return list(needs(Compute.from_text(text), GRAPH))


def test_a_forward_needs_the_outputs_of_what_it_reads() -> None:
    assert _needs("0F5") == []
    assert _needs("2F5") == [(Result.OUTPUT, 0), (Result.OUTPUT, 1)]
    assert _needs("3F5") == [(Result.OUTPUT, 0), (Result.OUTPUT, 1), (Result.OUTPUT, 2)]


def test_a_backward_needs_the_next_reader_of_every_chain_it_is_part_of() -> None:
    # Stage 0 makes x0 (read by 1) and skip (2, then 3: it waits for 2 only), and reads image
    # together with 2.
    assert _needs("0B5") == [(Result.OUTPUT, 0), (Result.INPUT_GRAD, 1), (Result.INPUT_GRAD, 2)]
    # No gradient comes back along the mask.
    assert _needs("1B5") == [(Result.OUTPUT, 1), (Result.INPUT_GRAD, 2)]
    # Stage 2 reads skip before 3 does: it adds to the sum that 3 hands down.
    assert _needs("2I5") == [(Result.OUTPUT, 2), (Result.INPUT_GRAD, 3)]
    assert _needs("3B5") == [(Result.OUTPUT, 3)]


def test_a_weight_backward_needs_the_input_backward_of_its_stage() -> None:
    assert _needs("1W5") == [(Result.INPUT_GRAD, 1)]


def test_a_full_backward_makes_what_the_two_halves_make() -> None:
    kinds = {str(kind): set(results) for kind, results in MAKES.items()}
    assert kinds["B"] == kinds["I"] | kinds["W"]
    assert not kinds["I"] & kinds["W"]


def test_a_recomputation_needs_its_forward_and_its_backward_needs_it() -> None:
    assert _needs("1R5") == [(Result.OUTPUT, 1)]
    backward = Compute.from_text("3B5")
    assert list(needs(backward, GRAPH, recomputed=True)) == [
        (Result.OUTPUT, 3),
        (Result.ACTIVATIONS, 3),
    ]
