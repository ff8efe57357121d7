"""How every experiment measures and reports: interleaved rounds, medians with spread, the machine."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Sample:
    """The times of one contender, in seconds, one per round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        if len(self.seconds) < 4:
            return (max(self.seconds) - min(self.seconds)) / 2 / self.median
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median

    def __str__(self) -> str:
        return f"{self.median * 1e3:.1f} ms ±{self.spread:.0%}"


def interleave(
    contenders: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 1
) -> dict[str, Sample]:
    """Time all contenders once per round, starting with another one each round.

    What disturbs the machine for a while then disturbs every contender alike, and ratios of the same
    round (`ratio`) stay meaningful.
    """
    names = list(contenders)
    for _ in range(warmup):
        for call in contenders.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            begun = time.perf_counter()
            contenders[name]()
            times[name].append(time.perf_counter() - begun)
    return {name: Sample(tuple(values)) for name, values in times.items()}


def ratio(slow: Sample, fast: Sample) -> float:
    """How many times faster `fast` is: the median over rounds of the ratio within the round."""
    return statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))


def environment() -> dict[str, str]:
    """What the numbers depend on besides the code."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "processor": _processor(),
        "system": platform.system(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


@dataclass
class Report:
    """A table with a title, remarks and the environment; written as JSON and as Markdown."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[object]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, *row: object) -> None:
        """Append a row and print it, so that a long run shows how far it is."""
        self.rows.append(row)
        print("  ".join(map(str, row)), file=sys.stderr, flush=True)

    def markdown(self) -> str:
        where = ", ".join(f"{key} {value}" for key, value in environment().items())
        table = "\n".join(
            _line(row) for row in (self.columns, ["---"] * len(self.columns), *self.rows)
        )
        return "\n\n".join([f"## {self.title}", *self.remarks, table, f"_{where}_"]) + "\n"

    def write(self, folder: Path = RESULTS) -> None:
        """Print the Markdown and write both forms to `folder`."""
        text = self.markdown()
        print(text)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.md").write_text(text, encoding="utf-8")
        record = {
            "title": self.title,
            "environment": environment(),
            "columns": list(self.columns),
            "rows": [list(map(str, row)) for row in self.rows],
            "remarks": self.remarks,
        }
        (folder / f"{self.name}.json").write_text(
            json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def arguments(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """The options that all experiments share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="measurements of each contender")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only that it runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and Markdown")
    return parser


PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def publish(folder: Path = RESULTS, page: Path = PAGE) -> None:
    """Put the Markdown of all experiments into docs/benchmarks.md, each between its own marks.

    What was measured before and is not in `folder` stays as it is.
    """
    parts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    if not parts:
        raise SystemExit(f"nothing in {folder}: run `make bench` first")
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = with_section(text, name, part)
    page.write_text(text, encoding="utf-8")
    print(f"wrote {page}")


def with_section(text: str, name: str, part: str) -> str:
    """The text with what stands between the marks of `name` replaced, or appended if there are none.

    Raises:
        SystemExit: if the second mark is missing: nobody knows where the section ends.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n{part.strip()}\n{end}"
    before, mark, rest = text.partition(begin)
    if not mark:
        return f"{text.rstrip()}\n\n{section}\n"
    if end not in rest:
        raise SystemExit(f"{begin} without {end}")
    return before + section + rest.partition(end)[2]


if __name__ == "__main__":
    publish()
