"""``f32[8,1,64,64]`` → a tensor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor

_FLOATS = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_INTEGERS = {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8"}
_PATTERN = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<type>[a-z]+\d*)\[(?P<shape>[\d,\s]*)\]")

_MARK = re.compile(r"(?P<name>[A-Za-z_]\w*):(?P<dim>-?\d+)=(?P<label>[\w* ]+)")


def make_inputs(texts: Sequence[str], high: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs: normal floats, integers from 0 to below `high`, coin flips.

    Raises:
        typer.BadParameter: if a text describes no tensor.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise typer.BadParameter(
                f"{text!r} is no input: expected f32[8,1,64,64] or name=i64[4,16]"
            )
        shape = [int(size) for size in match["shape"].split(",") if size.strip()]
        tensor = _draw(match["type"], shape, high)
        if match["name"]:
            kwargs[match["name"]] = tensor
        else:
            args.append(tensor)
    return tuple(args), kwargs


def read_dynamic(texts: Sequence[str] | None) -> dict[str, dict[int, str]] | None:
    """``["ids:1=length"]`` → ``{"ids": {1: "length"}}``; None for none.

    Raises:
        typer.BadParameter: if a text marks no dimension.
    """
    marks: dict[str, dict[int, str]] = {}
    for text in texts or ():
        match = _MARK.fullmatch(text.strip())
        if match is None:
            raise typer.BadParameter(f"{text!r} marks no dimension: expected ids:1=length")
        marks.setdefault(match["name"], {})[int(match["dim"])] = match["label"]
    return marks or None


def _draw(type_name: str, shape: Sequence[int], high: int) -> Tensor:
    import torch

    if type_name in _FLOATS:
        return torch.randn(shape).to(getattr(torch, _FLOATS[type_name]))
    if type_name in _INTEGERS:
        return torch.randint(high, shape).to(getattr(torch, _INTEGERS[type_name]))
    if type_name == "bool":
        return torch.randint(2, shape).bool()
    known = ", ".join([*_FLOATS, *_INTEGERS, "bool"])
    raise typer.BadParameter(f"there is no type {type_name!r}; known are {known}")
