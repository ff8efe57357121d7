"""`Findings` as text: sections of tables and short blocks, a hundred columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from fxpipe.ir.capture import LeafReport
from fxpipe.ir.findings import Findings, GuardFinding, InputFinding, UnitFinding
from fxpipe.viz.module_tree import module_rows
from fxpipe.viz.tables import WIDTH, table

_NUMBERS: Final = ("calls", "nodes", "cost")


def findings_text(findings: Findings, *, depth: int | None = None) -> str:
    """The capture and the plan in a line each, then `sections`."""
    head = [
        line
        for text in (findings.capture, findings.plan, findings.costs)
        for line in _wrapped(text, "", "  ")
    ]
    return "\n\n".join(("\n".join(head), *sections(findings, depth=depth)))


def sections(findings: Findings, *, depth: int | None = None) -> Iterator[str]:
    """What was found, a text for each subject.

    Args:
        findings: what `fxpipe.findings.examine.examine` gave.
        depth: how many levels of modules are listed. None: all that are not inside of a called one
            if there is a plan, else three.
    """
    yield _inputs(findings.inputs)
    if findings.spans:
        yield _modules(findings, depth)
    yield _leaves(findings.leaves)
    yield _guards(findings.guards)
    yield _crossings(findings)
    yield _cuts(findings)


def _inputs(inputs: Sequence[InputFinding]) -> str:
    rows = []
    for each in inputs:
        if each.is_constant:
            cut = "a constant: another value is another recording"
        elif each.batch_dim is None:
            cut = "given whole to every micro-batch"
        else:
            cut = f"cut along dimension {each.batch_dim}"
        free = ", ".join(f"{dim} ({label})" for dim, label in each.dynamic)
        rows.append((each.name, each.text, cut, free))
    if not inputs:
        return "Inputs: none"
    headers = ("input", "value", "micro-batches", "other free dimensions")
    return f"Inputs: {len(inputs)}\n{table(headers, rows)}"


def _modules(findings: Findings, depth: int | None) -> str:
    rows = [
        (row.name, row.module_class, str(row.calls), str(row.nodes), row.share, row.note)
        for row in module_rows(findings.spans, depth)
    ]
    last = "in the stages" if findings.plan else "in a stage, if not divided"
    headers = ("module", "class", "calls", "nodes", "cost", last)
    body = table(headers, rows, right=_NUMBERS)
    return f"Module calls that were looked into: {len(findings.spans)}\n{body}"


def _leaves(leaves: Sequence[LeafReport]) -> str:
    if not leaves:
        return "Modules that stay whole, other than layers of torch.nn: none"
    groups: dict[tuple[str, ...], list[str]] = {}
    for leaf in leaves:
        key = (leaf.module_class, leaf.reason, leaf.source, leaf.operation, leaf.remedy)
        groups.setdefault(key, []).append(leaf.path or "(the model)")
    lines = [f"Modules that stay whole, other than layers of torch.nn: {len(leaves)}"]
    for (cls, reason, source, operation, remedy), paths in groups.items():
        lines += _block(
            f"{_listed(paths)} ({cls.rpartition('.')[2]}): {reason}",
            at=source,
            operation=operation,
            for_finer_cuts=remedy,
        )
    return "\n".join(lines)


def _guards(guards: Sequence[GuardFinding]) -> str:
    if not guards:
        return "Decisions on data (guards): none"
    lines = [f"Decisions on data (guards): {len(guards)}"]
    for guard in guards:
        sources = [*(f"input {n}" for n in guard.inputs), *(f"buffer {n}" for n in guard.buffers)]
        called = "" if guard.called is None else f"{guard.called or 'the model'} decides by itself"
        lines += _block(
            f"{guard.expression} was {guard.expected}",
            at=guard.source,
            module=guard.path or "(the model)",
            depends_on=", ".join(sources) or "constants",
            in_the_stages=called,
        )
    return "\n".join((*lines, *_wrapped(_WHEN_IT_DIFFERS)))


_WHEN_IT_DIFFERS = (
    "A pipeline checks them ahead of every micro-batch. Where one comes out otherwise, the model is "
    "recorded anew for it, under the same cut; with too many different outcomes it is an error. "
    "fxpipe.run, which has one recording, raises a CaptureError."
)


def _crossings(findings: Findings, limit: int = 20) -> str:
    crossings = findings.crossings
    what = "Values that are no tensors and "
    what += "cross between stages" if findings.plan else "cross if a cut is made after them"
    if not crossings:
        return f"{what}: none"
    headers = ["value", "recorded as", "made in", "at"]
    rows = [
        [each.value, each.text, each.path or "(the model)", each.source]
        for each in crossings[:limit]
    ]
    if findings.plan:
        headers.append("stages")
        for row, each in zip(rows, crossings, strict=False):
            row.append(f"{each.producer} → {', '.join(map(str, each.consumers))}")
    more = f"\n  … and {len(crossings) - limit} more" if len(crossings) > limit else ""
    return f"{what}: {len(crossings)}\n{table(headers, rows)}{more}"


def _cuts(findings: Findings) -> str:
    positions = max(findings.num_nodes - 1, 0)
    lines = [f"Legal cuts: {findings.legal_cuts} of {positions} positions between nodes"]
    if findings.largest is not None:
        lines += _wrapped(_bound(findings.largest, findings.num_nodes))
    return "\n".join(lines)


def _bound(unit: UnitFinding, total: int) -> str:
    nodes = unit.first if unit.nodes == 1 else f"{unit.first} … {unit.last} ({unit.nodes} nodes)"
    where = f", in {unit.path}" if unit.path else ""
    if unit.share is None:
        share = f"{unit.nodes} of {total} nodes (the costs are not known)"
        return f"Largest indivisible unit: {share}: {nodes}{where}: {unit.reason}"
    text = f"Largest indivisible unit: {unit.share:.1%} of the cost: {nodes}{where}: {unit.reason}."
    if not unit.share:
        return text
    return (
        f"{text} The slowest stage has at least that share: however many stages there are, they "
        f"are at most {1 / unit.share:.1f} times as fast as one device, and more than "
        f"{max(int(1 / unit.share), 1)} cannot be even."
    )


# ---- layout --------------------------------------------------------------------------------------


def _block(title: str, **fields: str) -> Iterator[str]:
    """A title and named lines under it; empty ones are left out."""
    yield from _wrapped(title, "  ", "    ")
    width = max(map(len, fields)) + 2
    for name, text in fields.items():
        if text:
            label = f"    {name.replace('_', ' '):{width}}"
            yield from _wrapped(text, label, " " * len(label))


def _wrapped(text: str, first: str = "  ", rest: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def _listed(paths: Sequence[str], limit: int = 4) -> str:
    if len(paths) <= limit:
        return ", ".join(paths)
    return f"{', '.join(paths[: limit - 1])} … {paths[-1]} ({len(paths)})"
