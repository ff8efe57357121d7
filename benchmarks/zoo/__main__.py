"""Run the zoo through fxpipe and through other front ends, and write the page of it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

from benchmarks.peers.capture_peers import PEERS, judge
from benchmarks.zoo.isolated import isolated
from benchmarks.zoo.ours import figures
from benchmarks.zoo.page import Row, page
from tests.zoo.entry import Entry
from tests.zoo.registry import ZOO

PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"


def main() -> None:
    options = _arguments()
    chosen = [entry for entry in ZOO if not options.only or _is_named(entry, options.only)]
    if not chosen:
        raise SystemExit(f"no model of the zoo is called like {' or '.join(options.only)}")
    stages = (2,) if options.quick else (2, 4)
    rounds = 1 if options.quick else 5
    _import_ahead()
    rows = []
    for entry in chosen:
        rows.append(_row(entry, rounds, stages, options.timeout))
        print(_line(rows[-1]), file=sys.stderr, flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(page(rows, stages, rounds), encoding="utf-8")
    print(f"wrote {options.output}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="part of a model's or a library's name; repeatable",
    )
    parser.add_argument("--output", type=Path, default=PAGE, help="the Markdown page to write")
    parser.add_argument("--quick", action="store_true", help="two stages, one measurement each")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each front end")
    return parser.parse_args()


def _is_named(entry: Entry, names: list[str]) -> bool:
    return any(name.lower() in f"{entry.library} {entry.name}".lower() for name in names)


def _import_ahead() -> None:
    """What every child needs; nothing is computed here, so that children can be forked."""
    import torch.distributed.pipelining
    import torch.export

    torch.set_num_threads(1)


def _row(entry: Entry, rounds: int, stages: tuple[int, ...], timeout: float) -> Row:
    return Row(
        entry,
        isolated(figures, entry, rounds, stages, timeout=timeout),
        {name: isolated(judge, entry, capture, timeout=timeout) for name, capture in PEERS.items()},
    )


def _line(row: Row) -> str:
    made = row.figures
    ours = row.ours.error if made is None else f"{made.seconds:.2f} s, {made.errors or 'as eager'}"
    others = ", ".join(f"{name}: {row.verdict(name)}" for name in row.peers)
    return f"{row.entry.name}: {ours}; {others}"


if __name__ == "__main__":
    main()
