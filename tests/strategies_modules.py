"""Hypothesis strategy: random modules inside modules, that hand each other containers of all kinds.

A module is a `Block`: a list of steps over values, some of them calls of further blocks. It prints as
the Python that makes it, and shrinks towards few plain steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.module_steps import FUNCTIONS, LENGTH, MODULES, TIED, WIDTH

KINDS = (*MODULES, *FUNCTIONS, *TIED)


@dataclass(frozen=True)
class Op:
    """A step of `tests.module_steps`, and the values it reads (counted back from the newest)."""

    kind: str
    reads: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Block:
    """A module.

    Attributes:
        steps: in order; each makes one value, but for inner blocks that give several.
        gives: further values it returns besides the newest, counted back from it.
        form: of what it returns (see `pack`).
    """

    steps: tuple[Op | Inner, ...]
    gives: tuple[int, ...] = ()
    form: str = "tuple"


@dataclass(frozen=True)
class Inner:
    """A call of a block: what it is handed, in which form; `again`: it is called twice."""

    block: Block
    reads: tuple[int, ...] = (1,)
    form: str = "positional"
    again: bool = False


class Pair(NamedTuple):
    first: Any
    rest: Any


@dataclass
class Record:
    values: list[Any]
    name: str = "record"
    inner: dict[str, Any] = field(default_factory=dict)


def pack(values: list[Tensor], form: str) -> Any:
    """Values in a container."""
    match form:
        case "list":
            return list(values)
        case "dict":
            return {f"value{n}": value for n, value in enumerate(values)}
        case "named":
            return Pair(values[0], tuple(values[1:]))
        case "record":
            return Record(values, inner={"last": values[-1], "count": len(values)})
        case "nested":
            return {"all": [{"first": values[0]}, (None, *values[1:]), len(values)]}
        case _:
            return tuple(values)


def unpack(packed: Any) -> list[Tensor]:
    """The values of a container, in order."""
    match packed:
        case Tensor():
            return [packed]
        case Pair(first, rest):
            return [first, *rest]
        case Record():
            return packed.values
        case {"all": [{"first": first}, (None, *rest), int()]}:
            return [first, *rest]
        case dict():
            return list(packed.values())
        case _:
            return list(packed)


class BlockModule(nn.Module):
    """The module of a block."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        self.first = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleDict()
        for n, step in enumerate(block.steps):
            if isinstance(step, Inner):
                self.parts[str(n)] = BlockModule(step.block)
            elif step.kind in MODULES:
                self.parts[str(n)] = MODULES[step.kind]()

    def forward(self, *packed: Any, flag: bool = False, **named: Any) -> Any:
        values = [value for one in (*packed, *named.values()) for value in unpack(one)]
        values.append(self.first(values[-1]))
        early = values[-1]
        for n, step in enumerate(self.block.steps):
            if isinstance(step, Inner):
                values.extend(self._call(str(n), step, values))
            else:
                values.append(self._run(n, step.kind, *(_read(values, at) for at in step.reads)))
        newest = values[-1] * 0.5 + early
        given = [newest, *(_read(values, at) for at in self.block.gives)]
        if flag:
            given[0] = -given[0]
        return (
            newest if len(given) == 1 and self.block.form == "one" else pack(given, self.block.form)
        )

    def _call(self, name: str, step: Inner, values: list[Tensor]) -> list[Tensor]:
        part, given = self.parts[name], [_read(values, at) for at in step.reads]
        for _ in range(1 + step.again):
            match step.form:
                case "positional":
                    made = part(*given)
                case "keywords":
                    made = part(**{f"x{n}": value for n, value in enumerate(given)}, flag=True)
                case form:
                    made = part(pack(given, form))
            given = unpack(made)
        return given

    def _run(self, n: int, kind: str, a: Tensor, b: Tensor) -> Tensor:
        if kind in MODULES:
            return self.parts[str(n)](a)
        if kind == "weight_again":
            return F.linear(a, self.first.weight)
        if kind == "module_again":
            earlier = [part for name, part in self.parts.items() if int(name) < n]
            plain = [part for part in earlier if not isinstance(part, BlockModule)]
            return (plain[-1] if plain else self.first)(a) + b
        return FUNCTIONS[kind](self, a, b)


def _read(values: list[Tensor], back: int) -> Tensor:
    return values[-1 - (back - 1) % len(values)]


def build(block: Block, seed: int = 0) -> BlockModule:
    """A block's module; its weights depend on the seed only."""
    torch.manual_seed(seed)
    return BlockModule(block)


def inputs(
    form: str, count: int, rows: int, seed: int = 1, length: int = LENGTH
) -> tuple[Any, ...]:
    """Arguments for a block's module, in one of the forms."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(rows, length, WIDTH, generator=generator) for _ in range(count)]
    return tuple(values) if form == "positional" else (pack(values, form),)


FORMS = ("tuple", "list", "dict", "named", "record", "nested")
_BACK = st.one_of(st.just(1), st.integers(1, 6))


@st.composite
def blocks(
    draw: st.DrawFn, depth: int = 2, max_steps: int = 5, without: frozenset[str] = frozenset()
) -> Block:
    """Modules with branches, loops, skips, writes in place, dropout, tied weights and modules, buffers,
    regions, and inner modules that are handed and return nested containers. `without`: steps left out.
    """
    kinds = st.sampled_from([kind for kind in KINDS if kind not in without])
    step: st.SearchStrategy[Any] = st.builds(Op, kinds, st.tuples(_BACK, _BACK))
    if depth:
        inner = st.builds(
            Inner,
            blocks(depth - 1, max_steps - 2, without),
            st.lists(_BACK, min_size=1, max_size=3).map(tuple),
            st.sampled_from(("positional", "keywords", *FORMS)),
            st.booleans(),
        )
        step = st.one_of(step, step, step, inner)
    steps = draw(st.lists(step, min_size=1, max_size=max_steps))
    gives = draw(st.lists(_BACK, max_size=2).map(tuple))
    return Block(tuple(steps), gives, draw(st.sampled_from(("one", *FORMS))))
