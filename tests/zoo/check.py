"""What is checked of an entry: steps of a pipeline against eager micro-batches."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Final

import torch
from torch import Tensor, nn

import fxpipe
from fxpipe.capture.containers import take_apart
from fxpipe.ir.capture import Capture
from fxpipe.portals.calls import Fate, span_fates
from fxpipe.runtime.weights import tied_parameters
from tests.equivalence.compare import buffers_of, grads_of
from tests.reference import run_eager_step
from tests.zoo.entry import Entry

EXAMPLE_ROWS: Final = 4
CHUNKS: Final = 2


def model_of(entry: Entry, mode: str = "train") -> nn.Module:
    """The entry's model, always the same weights."""
    torch.manual_seed(0)
    return entry.build().train(mode == "train")


@contextmanager
def compiled(
    entry: Entry, model: nn.Module, stages: int, **options: Any
) -> Iterator[fxpipe.Pipeline]:
    """A pipeline captured on the entry's example."""
    args, kwargs = entry.batch(EXAMPLE_ROWS, 1)
    with fxpipe.compile(
        model,
        ["cpu"] * stages,
        chunks=CHUNKS if entry.batched else 1,
        example_args=args,
        example_kwargs=kwargs,
        costs="estimate",
        threads_per_rank=1,
        **options,
    ) as pipe:
        yield pipe


def check(entry: Entry, mode: str, stages: int, **options: Any) -> None:
    """Steps on fresh batches of several sizes are those of eager micro-batches.

    Hooks on modules that a cut divides are recorded when they are met first, and the recording is looked
    at with each new number of rows: both run the model. So calls are counted from the second time that
    all sizes are met; both models have made the same steps by then.
    """
    model = model_of(entry, mode)
    eager = copy.deepcopy(model)
    with compiled(entry, model, stages, batch_norm="per_micro_batch", **options) as pipe:
        hooks, eager_hooks = Calls(model), Calls(eager)

        for seed in (2, 2 + len(entry.sizes)):
            hooks.clear()
            eager_hooks.clear()
            _check_sizes(entry, pipe, eager, seed)
        check_hooks(entry, pipe, hooks.counts(), eager_hooks.counts())
        check_lines(entry, pipe)


def _check_sizes(entry: Entry, pipe: fxpipe.Pipeline, eager: nn.Module, first_seed: int) -> None:
    """A step for each of the entry's sizes, on fresh data."""
    for seed, rows in enumerate(entry.sizes, start=first_seed):
        batch = entry.batch(rows if entry.batched else EXAMPLE_ROWS, seed)
        _check_step(entry, pipe, eager, batch, f"{entry.name}, {rows} rows")


def _check_step(
    entry: Entry,
    pipe: fxpipe.Pipeline,
    eager: nn.Module,
    batch: tuple[tuple[Any, ...], dict[str, Any]],
    what: str,
) -> None:
    args, kwargs = batch

    def loss(output: Any, target: Any) -> Tensor:
        return entry.loss(output)

    eager.zero_grad(set_to_none=True)
    pipe.zero_grad(set_to_none=True)
    chunks = CHUNKS if entry.batched else 1
    reference = run_eager_step(
        eager, args, kwargs, chunks=chunks, loss_fn=loss, deferred_norms=False
    )
    result = pipe.step(inputs=(args, kwargs), loss_fn=loss, keep_output=entry.joins)
    same = Same(entry, what)
    assert reference.loss is not None
    same.tensor(result.loss, reference.loss, "loss")
    if entry.joins:
        same.joined(result.output, reference.outputs, "output")
    _same_gradients(same, pipe, grads_of(eager))
    for name, buffer in buffers_of(pipe.module).items():
        same.tensor(buffer, reference.buffers[name], f"buffer {name}")


def _same_gradients(same: Same, pipe: fxpipe.Pipeline, expected: dict[str, Tensor | None]) -> None:
    """Parameters that several stages read sum up their gradients in another order: up to rounding."""
    tied = tied_parameters(pipe.module, pipe.stages)
    assert any(wanted is not None for wanted in expected.values())
    for name, parameter in pipe.named_parameters():
        wanted, found = expected[name], parameter.grad
        assert (found is None) == (wanted is None), f"{same.what}: gradient of {name}"
        if wanted is None or found is None:
            continue
        if parameter in tied:
            torch.testing.assert_close(found, wanted, msg=lambda m, n=name: f"{n}: {m}")
        else:
            same.tensor(found, wanted, f"gradient of {name}")


@dataclass(frozen=True)
class Same:
    """Asserts that values are those of eager execution, as exactly as the entry promises."""

    entry: Entry
    what: str

    def tensor(self, found: Tensor, wanted: Tensor, name: str) -> None:
        """Two tensors."""
        assert found.shape == wanted.shape, f"{self.what}: shape of {name}"
        allowed = self.entry.tolerance
        if allowed is not None:
            torch.testing.assert_close(
                found, wanted, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True
            )
            return
        equal = torch.equal(found, wanted) or bool(
            ((found == wanted) | (found.isnan() & wanted.isnan())).all()
        )
        assert equal, f"{self.what}: {name} differs by {(found - wanted).abs().max()}"

    def joined(self, found: Any, pieces: Sequence[Any], name: str) -> None:
        """A result, and those of the micro-batches that it was joined from (of unequal sizes)."""
        first = pieces[0]
        if isinstance(first, Tensor):
            self._joined_tensors(found, pieces, name)
            return
        apart = take_apart(first)
        if apart is None:
            alike = all(piece == first for piece in pieces)
            assert found == (first if alike else list(pieces)), f"{self.what}: {name}"
            return
        parts, _ = apart
        other = take_apart(found)
        assert other is not None, f"{self.what}: {name} is a {type(found).__name__}"
        assert other[0] == parts, f"{self.what}: structure of {name}"
        columns = zip(*(take_apart(piece)[1] for piece in pieces), strict=True)
        for step, inner, column in zip(parts.steps(), other[1], columns, strict=True):
            self.joined(inner, column, f"{name}.{step}")

    def _joined_tensors(self, found: Any, pieces: Sequence[Tensor], name: str) -> None:
        first = pieces[0]
        differing = {
            dim
            for piece in pieces
            for dim, (a, b) in enumerate(zip(piece.shape, first.shape, strict=True))
            if a != b
        }
        if differing:
            (dim,) = differing
            self.tensor(found, torch.cat(list(pieces), dim), name)
        elif isinstance(found, list):
            for at, (one, piece) in enumerate(zip(found, pieces, strict=True)):
                self.tensor(one, piece, f"{name}[{at}]")
        elif len(pieces) == 1 or all(torch.equal(piece, first) for piece in pieces):
            self.tensor(found, first, name)
        else:
            assert first.dim() == 0, f"{self.what}: {name} is not joined"


class Calls:
    """Counts the calls of every module, by forward hooks."""

    def __init__(self, model: nn.Module) -> None:
        self._seen: list[str] = []  # appended to by several threads
        for path, module in model.named_modules():
            module.register_forward_hook(self._hook(path))

    def _hook(self, path: str) -> Any:
        return lambda module, args, output: self._seen.append(path)

    def counts(self) -> Counter[str]:
        """Path of a module → how often its hook ran."""
        return Counter(self._seen)

    def clear(self) -> None:
        """Count from zero."""
        self._seen.clear()


def captured(pipe: fxpipe.Pipeline) -> Capture:
    """What the pipeline recorded first."""
    line = pipe._recordings.line
    assert line is not None
    return line.capture


def check_hooks(
    entry: Entry, pipe: fxpipe.Pipeline, found: Counter[str], expected: Counter[str]
) -> None:
    """Hooks on modules that no cut divides run as often as in eager execution."""
    spans = captured(pipe).spans
    fates = zip(spans, span_fates(captured(pipe), pipe.plan), strict=True)
    divided = {span.path for span, fate in fates if fate.fate in (Fate.DIVIDED, Fate.EMPTY)}
    wrong = {
        path: (found[path], count)
        for path, count in expected.items()
        if found[path] != count and path not in divided and not _is_written_out(entry, path)
    }
    assert not wrong, f"{entry.name}: hooks that ran (found, expected) times: {wrong}"


def _is_written_out(entry: Entry, path: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in entry.written_out)


def lines_of(pipe: fxpipe.Pipeline) -> list[int]:
    """Lines of each stage's forward, without comments."""
    counts = []
    for program in pipe.stages:
        body = program.source.partition("def forward")[2].splitlines()
        counts.append(sum(1 for line in body if line.strip() and not line.strip().startswith("#")))
    return counts


def check_lines(entry: Entry, pipe: fxpipe.Pipeline) -> None:
    """The stages call the model's own modules instead of repeating what they do."""
    capture = captured(pipe)
    flat = {
        span.path: fate.reason
        for span, fate in zip(capture.spans, span_fates(capture, pipe.plan), strict=True)
        if fate.fate is Fate.FLAT and not _is_written_out(entry, span.path)
    }
    assert not flat, f"{entry.name}: written out although no cut divides them: {flat}"
    lines, most = lines_of(pipe), entry.most_lines
    assert len(lines) > 2 or sum(lines) <= most, f"{entry.name}: stages of {lines} lines"
