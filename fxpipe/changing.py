"""What differs between the recordings of one model, and what a user can do about their number."""

from __future__ import annotations

from collections.abc import Sequence

from fxpipe.ir.capture import Capture


def changing_sizes(captures: Sequence[Capture]) -> tuple[tuple[str, int], ...]:
    """Inputs and dimensions whose sizes differ between recordings of the last one's structure.

    Dimensions that a recording leaves free are not among them.
    """
    alike = [c.signature for c in captures if c.signature.input == captures[-1].signature.input]
    found = []
    for at, leaf in enumerate(alike[-1].inputs):
        specs = [signature.inputs[at].spec for signature in alike]
        shapes = [spec.shape for spec in specs if spec is not None]
        if len({len(shape) for shape in shapes}) != 1:
            continue
        free = {leaf.batch_dim, *(dim for dim, _ in leaf.dynamic)}
        for dim, sizes in enumerate(zip(*shapes, strict=True)):
            if dim not in free and len(set(sizes)) > 1:
                found.append((leaf.name, dim))
    return tuple(found)


def advice(captures: Sequence[Capture]) -> str:
    """What to do if there are too many recordings."""
    found = changing_sizes(captures)
    if not found:
        return "What to do: keep flags, constants and modes the same, or raise max_recordings"
    marks: dict[str, dict[int, str]] = {}
    for name, dim in found:
        marks.setdefault(name, {})[dim] = "length"
    return (
        f"What to do: mark the sizes that change, as in dynamic={marks} (one name for those that "
        "change together), or pad to a few lengths, or raise max_recordings"
    )
