from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpipe.ir.schedule import Schedule
from fxpipe.schedules.chunks import divide, on_stages


@given(st.integers(1, 40), st.integers(1, 12))
def test_chunks_differ_by_one_at_most(stages: int, chunks: int) -> None:
    parts = divide(stages, chunks)
    assert [stage for part in parts for stage in part] == list(range(stages))
    sizes = [len(part) for part in parts]
    assert len(sizes) == chunks
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def _on(text: str, stages: int, micro_batches: int, chunks: int) -> str:
    return str(on_stages(Schedule.from_text(text), stages, micro_batches, chunks))


def test_a_backward_runs_its_stages_in_reverse() -> None:
    assert _on("0F0 0R0 0I0 0W0 0U\n1F0 1B0", 4, 1, 2) == (
        "0F0 1F0 0R0 1R0 1I0 0I0 1W0 0W0 0U 1U\n2F0 3F0 3B0 2B0"
    )


@pytest.mark.parametrize(
    ("stages", "micro_batches", "expected"),
    [
        (2, 2, "(0F1;1B0)OVERLAP_F_B"),
        (3, 2, "(0F1;1F1;2B0)OVERLAP_F_B"),
        (2, 1, "1B0"),
        (1, 2, "0F1"),
    ],
)
def test_cells_keep_what_is_there(stages: int, micro_batches: int, expected: str) -> None:
    assert _on("(0F1;1B0)OVERLAP_F_B", stages, micro_batches, 2) == expected
