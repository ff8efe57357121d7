"""`Entry`: a real model in a tiny configuration, and how to feed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from fxpipe.capture.signature import flatten

Batch: TypeAlias = Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]
"""(rows, seed) → (args, kwargs)."""


@dataclass(frozen=True)
class Tolerance:
    """How far a pipeline may be from eager execution, and why it is not bit for bit the same."""

    rtol: float
    atol: float
    reason: str


def mean_square(output: Any) -> Tensor:
    """The output's own loss, if it has one; plus the mean square of every differentiable tensor."""
    leaves, _ = flatten(output, shared=True)
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    assert found, f"nothing in {type(output).__name__} has a gradient"
    total = _term(found[0])
    for leaf in found[1:]:
        total = total + _term(leaf)
    return total


def _term(leaf: Tensor) -> Tensor:
    return leaf.abs().square().mean() if leaf.dim() else leaf


@dataclass(frozen=True)
class Entry:
    """A real model in a tiny configuration.

    Attributes:
        name: as the table of the zoo shows it.
        library: where the model's code comes from.
        build: the model with random weights and no dropout; called under ``torch.manual_seed(0)``.
        batch: (rows, seed) → (args, kwargs): fresh data for each seed.
        loss: of the model's output, for one micro-batch.
        batched: False for models without a batch dimension: one micro-batch only.
        tolerance: None: bit for bit as in eager.
        modes: training modes to try.
        sizes: rows of the batches to run; those of the example are another number.
        most_lines: of both sources at two stages. What stays is the code of modules that a cut divides:
            making masks, mostly, and losses.
        with_dropout: the model with dropout, if it has any: one stage and two draw the same numbers.
        slow: checking takes more than two seconds: in `make test-fast` only two stages in training.
        most_stages: into how many stages the tiny configuration can be cut, if not into four.
        written_out: paths (patterns of `fnmatch`) of modules inside a stage that no stage calls, so
            that hooks on them do not run. A reason stands beside each in the entry.
        joins: False: results of micro-batches of unequal sizes cannot be joined (a table of rows by
            rows), and only losses, gradients and buffers are compared.
    """

    name: str
    library: str
    build: Callable[[], nn.Module]
    batch: Batch
    loss: Callable[[Any], Tensor] = mean_square
    batched: bool = True
    tolerance: Tolerance | None = None
    modes: tuple[str, ...] = ("train", "eval")
    sizes: tuple[int, ...] = (5, 3)
    most_lines: int = 200
    with_dropout: Callable[[], nn.Module] | None = None
    slow: bool = False
    most_stages: int = 4
    written_out: tuple[str, ...] = ()
    joins: bool = True
