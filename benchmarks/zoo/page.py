"""The page of the zoo: two tables and what must be known to read them."""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from benchmarks.harness import environment
from benchmarks.peers.capture_peers import Verdict
from benchmarks.zoo.isolated import Outcome
from benchmarks.zoo.ours import Figures
from tests.zoo.entry import Entry

_LIBRARIES: Final = ("transformers", "diffusers", "monai", "torch_geometric", "x-transformers")
_MARKS: Final = {True: "✓", False: "✗", None: "–"}


@dataclass
class Row:
    """What became of an entry: with fxpipe (a `Figures`), with others (a `Verdict` each)."""

    entry: Entry
    ours: Outcome
    peers: dict[str, Outcome] = field(default_factory=dict)

    @property
    def figures(self) -> Figures | None:
        value: Figures | None = self.ours.value
        return value

    def verdict(self, peer: str) -> Verdict:
        """Of another front end; one that ran out of time or took its process along captured nothing."""
        outcome = self.peers[peer]
        return Verdict(error=outcome.error) if outcome.value is None else outcome.value


def page(rows: Sequence[Row], stages: Sequence[int], rounds: int) -> str:
    """Markdown."""
    parts = [
        "# Zoo",
        "Real models in tiny configurations with random weights, in training and in evaluation "
        "mode. Written by `make zoo` (`python -m benchmarks.zoo`); the models are those of "
        "`tests/zoo/`, where the same checks run as tests.",
        f"_{_where()}_",
        "## fxpipe",
        _summary(rows),
        _table(_OURS, [_our_cells(row, stages) for row in rows]),
        _how_to_read(stages, rounds),
        *_notes(rows),
    ]
    if any(row.peers for row in rows):
        parts += ["## Beside other front ends", *_beside(rows)]
    return "\n\n".join(_wrapped(part) for part in parts if part) + "\n"


def _wrapped(text: str) -> str:
    """A paragraph in lines of moderate length; tables and lists as they are."""
    if text.startswith(("|", "#", "-")) or "\n" in text:
        return text
    return textwrap.fill(text, 104, break_on_hyphens=False, break_long_words=False)


def _where() -> str:
    found = [f"{key} {value}" for key, value in environment().items()]
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


# -- fxpipe --------------------------------------------------------------------------------------------

_OURS: Final = (
    "model",
    "library",
    "nodes",
    "leaves",
    "guards",
    "largest unit",
    "capture, s",
    "with verify, s",
    "verify, passes",
    "lines",
    "stages",
    "as eager",
    "train/eval",
)


def _our_cells(row: Row, stages: Sequence[int]) -> list[object]:
    name, made = row.entry.name, row.figures
    if made is None:
        return [name, row.entry.library, f"`{row.ours.error}`", *[""] * (len(_OURS) - 3)]
    star = "" if row.entry.tolerance is None else " (rounding)"
    return [
        name,
        row.entry.library,
        made.nodes,
        len(made.leaves),
        made.guards,
        f"{made.largest:.0%}",
        f"{made.seconds:.2f}",
        f"{made.seconds_verified:.2f}",
        f"{made.passes:.1f}",
        made.lines,
        ", ".join(map(str, made.stages)) or "none",
        _MARKS[made.right] + star,
        _MARKS[made.switches],
    ]


def _summary(rows: Sequence[Row]) -> str:
    made = [row.figures for row in rows if row.figures is not None]
    if not made:
        return f"0 of {len(rows)} captured."
    median = statistics.median(one.seconds for one in made)
    verified = statistics.median(one.seconds_verified for one in made)
    passes = statistics.median(one.passes for one in made)
    return (
        f"**{len(made)} of {len(rows)} captured, {sum(one.right for one in made)} as in eager "
        f"execution.** Median capture time {median:.2f} s, with verification {verified:.2f} s "
        f"({passes:.1f} forward and backward passes more)."
    )


def _how_to_read(stages: Sequence[int], rounds: int) -> str:
    tried = " and ".join(map(str, stages))
    return f"""\
- *nodes*: of the graph in training mode. *leaves*: modules that stay whole though they are no
  layers of torch.nn. *guards*: decisions on data that are checked before each run. *largest unit*:
  the share of the estimated cost that no cut can divide.
- *capture*: `fxpipe.trace` in `auto` mode on one core, median of {rounds}; *verify, passes*: what
  verification adds, in forward and backward passes of the model.
- *lines*: of the longest stage's `forward` at two stages; modules that no cut divides are single
  calls.
- *stages*: the numbers of stages (of {tried}) in which all checks pass. *as eager*: steps on fresh
  data, in both modes, with batches of other sizes than the example's (other graphs are recorded
  anew), give outputs, loss, gradients and buffers of eager micro-batches bit for bit (gradients of
  parameters that several stages read: up to rounding), and hooks run as often.
- *train/eval*: after `eval()` the pipeline computes what the model does; – where that is the same."""


def _notes(rows: Sequence[Row]) -> Iterable[str]:
    wrong = [
        f"- {row.entry.name}: {error}"
        for row in rows
        for error in ([] if row.figures is None else row.figures.errors)
    ]
    lost = [f"- {r.entry.name}: {_last_line(r.ours.message)}" for r in rows if r.figures is None]
    if wrong or lost:
        yield "\n".join(["**Not as in eager execution:**", "", *lost, *wrong])
    rounded = [
        f"- {row.entry.name}: {row.entry.tolerance.reason}"
        for row in rows
        if row.entry.tolerance is not None
    ]
    if rounded:
        yield "\n".join(["**Up to rounding:**", "", *rounded])
    whole = [
        f"- {row.entry.name}: {count} × `{cls}`: {reason}"
        for row in rows
        for (cls, reason), count in Counter(
            [] if row.figures is None else row.figures.leaves
        ).items()
    ]
    if whole:
        yield "\n".join(["**What stays whole, and why:**", "", *whole])
    yield (
        "denoising-diffusion-pytorch is not among them: it cannot be imported without torchvision, "
        "which the test suite does without."
    )


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no message"


# -- others --------------------------------------------------------------------------------------------


def _beside(rows: Sequence[Row]) -> Iterable[str]:
    names = list(rows[0].peers)
    yield (
        "The same models in training mode, captured on four rows. *right*: outputs and gradients on "
        "fresh data agree with eager execution up to rounding. *other batch*: so do the outputs for "
        "five rows. *train/eval*: after `eval()` too, of the models for which that differs (with "
        "dropout in their dropout layers). What could not be captured is neither."
    )
    yield _table(
        ("front end", "captured", "right", "other batch", "train/eval", "median, s"),
        [_our_total(rows), *(_total(name, rows) for name in names)],
    )
    yield _table(
        ("model", "fxpipe", *names),
        [
            [row.entry.name, _our_marks(row), *(_marks(row.verdict(n)) for n in names)]
            for row in rows
        ],
    )
    yield (
        "Each cell: right, other batch, train/eval; or the exception that ended the capture. "
        "`symbolic_trace`: arguments that are not given keep their defaults where it fails without. "
        "`torch.export`: `strict=False`, the first dimension `Dim.AUTO` (all dimensions of graphs); it "
        "and `pipeline` know the caches of transformers that this library registers for them. "
        "`pipeline`: two stages, cut in the middle of the longest list of modules, run one after the "
        "other in one process with autograd's own backward. Measured by this program, with a limit on "
        "the time of each."
    )


def _our_total(rows: Sequence[Row]) -> list[object]:
    made = [row.figures for row in rows if row.figures is not None]
    right = sum(one.right for one in made)
    asked = [one.switches for one in made if one.switches is not None]
    median = statistics.median(one.seconds for one in made) if made else 0.0
    return [
        "**fxpipe**",
        f"{len(made)} of {len(rows)}",
        right,
        right,
        f"{sum(asked)} of {len(asked)}",
        f"{median:.2f}",
    ]


def _total(name: str, rows: Sequence[Row]) -> list[object]:
    verdicts = [row.verdict(name) for row in rows]
    made = [verdict for verdict in verdicts if verdict.captured]
    asked = [verdict.switches for verdict in made if verdict.switches is not None]
    return [
        f"`{name}`",
        f"{len(made)} of {len(rows)}",
        sum(verdict.right is True for verdict in made),
        sum(verdict.other_batch is True for verdict in made),
        f"{sum(asked)} of {len(asked)}",
        f"{statistics.median(verdict.seconds for verdict in made):.2f}" if made else "–",
    ]


def _our_marks(row: Row) -> str:
    made = row.figures
    if made is None:
        return f"`{row.ours.error}`"
    return " ".join((_MARKS[made.right], _MARKS[made.right], _MARKS[made.switches]))


def _marks(verdict: Verdict) -> str:
    if not verdict.captured:
        return f"`{verdict.error}`"
    marks = (verdict.right, verdict.other_batch, verdict.switches)
    return " ".join(_MARKS[mark] for mark in marks)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
