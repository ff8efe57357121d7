"""Time per node: what is fitted, and every step of models of the size asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.capture import FAMILIES, STEPS, Family, Line, Size, exponents, through


def sizes(times: dict[int, list[float]]) -> list[Size]:
    """Sizes whose steps all take the times given for each round."""
    return [
        Size.of([Line(nodes, dict.fromkeys(STEPS, seconds)) for seconds in rounds])
        for nodes, rounds in times.items()
    ]


def test_exponents_are_those_of_each_round() -> None:
    made = sizes({10: [1.0, 1.0, 3.0], 100: [10.0, 100.0, 3.0], 1000: [100.0, 10_000.0, 3.0]})
    assert exponents(made, "trace").seconds == pytest.approx((1.0, 2.0, 0.0))
    assert exponents(made, "all").seconds == pytest.approx((1.0, 2.0, 0.0))
    assert exponents(made, "trace").median == pytest.approx(1.0)


def test_the_whole_is_the_sum_of_the_steps() -> None:
    (size,) = sizes({10: [1.0, 2.0]})
    assert size.steps["all"].seconds == (1.0 * len(STEPS), 2.0 * len(STEPS))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_models_have_about_as_many_nodes_as_asked(family: Family, tmp_path: Path) -> None:
    torch.manual_seed(0)
    blocks = 300 // family.nodes
    line = through(family.build(blocks), family.args, str(tmp_path))
    assert 285 < line.nodes < 345
    assert list(line.seconds) == list(STEPS)
    assert len(list(tmp_path.glob("stage_*.py"))) == 8
