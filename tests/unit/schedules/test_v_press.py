from __future__ import annotations

from fxpipe.schedules.v_press import Turn, press


def _row(text: str, *, with_weights: bool) -> dict[Turn, list[int]]:
    """Slots out of a drawing: F and f are forwards, b and B input halves of chunks 1 and 0."""
    turns = dict(zip("FfbBW", Turn, strict=True))
    row: dict[Turn, list[int]] = {
        turn: [] for turn in Turn if with_weights or turn is not Turn.WEIGHT
    }
    for slot, letter in enumerate(text):
        if letter != ".":
            row[turns[letter]].append(slot)
    return row


def _drawing(row: dict[Turn, list[int]]) -> str:
    cells = {slot: "FfbBW"[turn] for turn, slots in row.items() for slot in slots}
    return "".join(cells.get(slot, ".") for slot in range(max(cells) + 1))


def test_the_start_and_the_end_move_up() -> None:
    """One rank, two micro-batches, two chunks kept at most: the steady part between them stays."""
    row = _row("F..f.b.B.WW...F.f.b..B.WW", with_weights=True)
    press([row])
    assert _drawing(row) == "Ffb....B.WW...FfbBWW"


def test_without_weights_only_the_end_moves() -> None:
    row = _row("F.f.b.B...F...f..b..B", with_weights=False)
    press([row])
    assert _drawing(row) == "F.f.b.B...FfbB"
