from __future__ import annotations

from pathlib import Path

import pytest

from fxpipe.cli.chosen import Chosen, Counts, choose
from fxpipe.cli.rank_cost import RankCost
from fxpipe.cli.schedule_figures import closed_form, figures, form_of, peaks_table, require_memory
from fxpipe.errors import IllegalScheduleError


def _chosen(
    name: str, ranks: int = 4, micro_batches: int = 16, stages: int | None = None
) -> Chosen:
    return choose(name, Counts(ranks, micro_batches, stages), RankCost())


def test_every_bubble_has_the_name_of_its_convention() -> None:
    lines = figures(_chosen("zb-h2").timeline, "{:g}".format).splitlines()
    assert [line.split("  ")[1] for line in lines] == [
        "step",
        "bubble, fraction of the total",
        "bubble, ratio to the ideal",
        "bubble, fraction of the device span",
    ]
    assert " 51 " in lines[0]
    assert " 5.9% " in lines[1]
    assert " 6.2% " in lines[2]
    assert " 0.0% " in lines[3]


def _form(chosen: Chosen, rank: int) -> str:
    return closed_form(form_of(chosen), chosen, rank)


def test_closed_forms_and_bounds() -> None:
    assert [_form(_chosen("1f1b"), rank) for rank in range(4)] == ["4", "3", "2", "1"]
    assert _form(_chosen("interleaved-1f1b"), 0) == "5.5"
    assert _form(_chosen("v-half"), 0) == "<= 3"


@pytest.mark.parametrize("stages", [6, 8])
def test_where_there_is_no_closed_form_none_is_shown(stages: int) -> None:
    chosen = _chosen("1f1b", stages=stages)
    assert _form(chosen, 0) == ""
    table = peaks_table(chosen, "{:g}".format)
    assert "closed form" not in table.splitlines()[0]
    assert table.endswith("closed form: none for these counts")


def test_another_order_of_the_same_name_has_no_closed_form(tmp_path: Path) -> None:
    """Ranks that are given their stages in reverse keep 1 to 4, not 4 to 1; a file may have any name."""
    reverse = choose("1f1b", Counts(placement="3,2,1,0"), RankCost())
    assert reverse.kept == (1.0, 2.0, 3.0, 4.0)
    (tmp_path / "chimera.txt").write_text("0F0 0B0\n1F0 1B0\n2F0 2B0\n")
    own = choose(str(tmp_path / "chimera.txt"), Counts(), RankCost())
    for chosen in (reverse, own):
        assert form_of(chosen) is None
        assert "closed form" not in peaks_table(chosen, "{:g}".format)


def test_a_table_of_ranks() -> None:
    lines = peaks_table(_chosen("forward", 2, 3), "{:g} u".format).splitlines()
    assert lines[0].split("  ")[1:] == ["rank", "busy", "idle", "bubble", "kept", "closed form"]
    assert lines[2].split() == ["0", "3", "u", "1", "u", "25.0%", "0", "0"]


def test_a_limit_names_where_ranks_go_beyond_it(tmp_path: Path) -> None:
    require_memory(_chosen("1f1b"), 4)
    with pytest.raises(IllegalScheduleError) as refused:
        require_memory(_chosen("1f1b"), 2)
    assert str(refused.value).splitlines() == [
        "too much is kept:",
        "  - rank 0, position 2: 0F2 keeps 3 for backward, and 2 are allowed",
        "  - rank 1, position 2: 1F2 keeps 3 for backward, and 2 are allowed",
        "'fxpipe schedule search --memory 2' looks for one that fits",
    ]
    with pytest.raises(IllegalScheduleError, match=r"position 4: 0F2 keeps 2\.5 for backward"):
        require_memory(_chosen("interleaved-1f1b", 2, 4), 2)
    (tmp_path / "cells.txt").write_text("0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2")
    cells = choose(str(tmp_path / "cells.txt"), Counts(), RankCost())
    with pytest.raises(IllegalScheduleError, match="position 2: 0F2 keeps 3 for backward, and 2"):
        require_memory(cells, 2)
