"""Dimensions that vary from call to call: the rows of the batch, and those that the user marks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from fxpipe.capture.batch import Batch
from fxpipe.capture.formulas import Point
from fxpipe.capture.signature import Layout, argument_names

Dynamic: TypeAlias = Mapping[str, Mapping[int, str]]
"""Argument → dimension → name; dimensions of one name vary together."""

Place: TypeAlias = tuple[int, int]
"""Position of an input leaf, and one of its dimensions."""

_LABEL: Final = re.compile(r"(?:(\d+)\s*\*\s*)?([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Mark:
    """What a user says of a dimension: its name, and that its sizes are multiples of `step`."""

    name: str
    step: int = 1

    @property
    def label(self) -> str:
        """The mark as the user writes it."""
        return self.name if self.step == 1 else f"{self.step}*{self.name}"


@dataclass(frozen=True, slots=True)
class Axis:
    """Dimensions that have one size: `places` says where, `size` which one when recorded."""

    mark: Mark
    size: int
    places: tuple[Place, ...]
    is_batch: bool = False

    def changed(self, size: int, base: int) -> str:
        """A change of size in words."""
        if self.is_batch:
            return f"{size} rows instead of {base}"
        return f"{self.mark.name} {size} instead of {base}"

    def others(self) -> list[int]:
        """Sizes for a second recording, the best first.

        Growing keeps every element of the example, but a model may have a longest size.
        """
        step, count = self.mark.step, self.size // self.mark.step
        half, more = count // 2, count + max(count // 2, 1)
        counts = dict.fromkeys((2 * count, more, half, count - half // 2, count - 1))
        return [n * step for n in counts if n * step >= 2 and n not in (0, count)]

    def less(self) -> list[int]:
        """Half the size, so that recordings reach from there to the double."""
        half = self.size // self.mark.step // 2 * self.mark.step
        return [half] if half >= 2 else []

    def near(self) -> list[int]:
        """The sizes next to the example's, which leave other remainders in divisions."""
        step = self.mark.step
        return [n for n in (self.size + step, self.size - step) if n >= 2]

    def far(self) -> list[int]:
        """Sizes for a recording in which all sizes differ, other than those near by."""
        step = self.mark.step
        sizes = (self.size + 3 * step, self.size - 3 * step, self.size + 2 * step)
        return [n for n in sizes if n >= 2]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of some recordings: a point for each, with one size per axis."""

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]

    def difference(self, at: int) -> str:
        """In words, how the sizes of a recording differ from those of the first one."""
        changes = [
            axis.changed(size, base)
            for axis, base, size in zip(self.axes, self.points[0], self.points[at], strict=True)
            if base != size
        ]
        return f"with {' and '.join(changes)}"


def batch_axis(batch: Batch) -> Axis:
    """The rows of a batch as an axis."""
    places = ((leaf, dim) for leaf, dim in enumerate(batch.dims) if dim is not None)
    return Axis(Mark("batch"), batch.recorded, tuple(places), is_batch=True)


def resized_along(leaves: Sequence[Any], axis: Axis, size: int) -> list[Any]:
    """The leaves with another size along an axis.

    Rows are repeated one after another; other dimensions are stretched, so that what is sorted stays
    so and the first and last elements stay what they are.
    """
    made = list(leaves)
    for leaf, dim in axis.places:
        made[leaf] = _resized(made[leaf], dim, size, axis.is_batch)
    return made


def _resized(leaf: torch.Tensor, dim: int, size: int, repeats: bool) -> torch.Tensor:
    have = leaf.shape[dim]
    if have == size:
        return leaf
    index = torch.arange(size, device=leaf.device)
    index = index % have if repeats else index * (have - 1) // max(size - 1, 1)
    return leaf.detach().index_select(dim, index).requires_grad_(leaf.requires_grad)


def marked(
    model: nn.Module, leaves: Sequence[Any], layout: Layout, dynamic: Dynamic | None
) -> dict[Place, Mark]:
    """The dimensions of a call's inputs that a user marked.

    Arguments of the model that this call leaves out are passed over.

    Args:
        leaves: of ``(args, kwargs)``, put together by `layout`.

    Raises:
        ValueError: if there is no such argument or dimension, or a mark is no name.
        TypeError: if an argument is no tensor, or `dynamic` is no mapping of mappings.
    """
    if not dynamic:
        return {}
    names = argument_names(model, layout)
    found: dict[Place, Mark] = {}
    for name, dims in dynamic.items():
        if not isinstance(dims, Mapping):
            raise TypeError(f"dynamic[{name!r}] must map dimensions to names, got {dims!r}")
        if name not in names:
            _check_is_parameter(model, name, names)
            continue
        leaf = leaves[names.index(name)]
        if leaf is None:
            continue
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"dynamic: input {name!r} is no tensor but {leaf!r}")
        for dim, label in dims.items():
            found[names.index(name), _dimension(name, leaf, dim)] = _mark(label)
    return found


def _check_is_parameter(model: nn.Module, name: str, names: Sequence[str]) -> None:
    try:
        is_parameter = name in inspect.signature(model.forward).parameters
    except (ValueError, TypeError):  # a built-in function may have none
        is_parameter = False
    if not is_parameter:
        listed = ", ".join(map(repr, names))
        raise ValueError(f"dynamic: the model has no input {name!r} (this call has {listed})")


def _dimension(name: str, leaf: torch.Tensor, dim: object) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"dynamic: a dimension of {name!r} must be an int, got {dim!r}")
    if not -leaf.dim() <= dim < leaf.dim():
        raise ValueError(f"dynamic: input {name!r} has {leaf.dim()} dimensions, no {dim}")
    return dim % leaf.dim()


def _mark(label: object) -> Mark:
    match = _LABEL.fullmatch(label.strip()) if isinstance(label, str) else None
    if match is None or (match[1] is not None and int(match[1]) < 1):
        raise ValueError(
            f"dynamic: {label!r} is no name of a dimension: expected a name such as 'length', or "
            "'16*width' for sizes that are multiples of 16"
        )
    return Mark(match[2], int(match[1] or 1))


def free_axes(
    marks: Mapping[Place, Mark], leaves: Sequence[Any], batch: Batch | None
) -> tuple[Axis, ...]:
    """The marked dimensions that one recording may leave free, those of one name together.

    A size of 1 is broadcast, and a model may well treat it on its own; a size that is no multiple of
    the step breaks the user's word: both are recorded as they are.

    Raises:
        ValueError: if dimensions of one name differ in size, or one has the rows of the batch.
    """
    places: dict[str, list[Place]] = {}
    for place, mark in marks.items():
        leaf, dim = place
        if batch is not None and batch.dims[leaf] == dim:
            raise ValueError(
                f"dynamic: dimension {dim} marked {mark.name!r} has the rows of the batch, whose "
                "number is free anyway"
            )
        places.setdefault(mark.name, []).append(place)
    axes = []
    for name, held in places.items():
        sizes = {leaves[leaf].shape[dim] for leaf, dim in held}
        if len(sizes) > 1:
            listed = ", ".join(map(str, sorted(sizes)))
            raise ValueError(f"dynamic: dimensions of one name, {name!r}, have sizes {listed}")
        size, step = sizes.pop(), max(marks[place].step for place in held)
        if size >= 2 and size % step == 0:
            axes.append(Axis(Mark(name, step), size, tuple(held)))
    return tuple(axes)
