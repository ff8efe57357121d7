"""Hypothesis strategies: random models, plans of them, sequences of costs.

A model is a `Recipe`: a list of steps over values of one shape ``[rows, WIDTH]``, so that any value may
feed any step. It prints as the Python that makes it, and shrinks towards few plain steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from fxpipe.analysis.cuts import legal_cuts
from fxpipe.ir.capture import Capture
from fxpipe.ir.plan import PartitionPlan
from fxpipe.partitioners.assemble import plan_of

WIDTH: Final = 4


@dataclass(frozen=True)
class Step:
    """One step: what it does, and the values it reads (by number, counted back from the newest)."""

    kind: str
    reads: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Recipe:
    """A model.

    Attributes:
        steps: in order; step i makes value ``inputs + i``.
        inputs: how many tensors the model takes.
        outputs: further values it returns besides the newest, counted back from it.
        structure: how several outputs are returned: ``"tuple"`` or ``"dict"``.
        extras: names of further arguments, of `EXTRAS`.
        also: what it returns besides values, of `ALSO`.
    """

    steps: tuple[Step, ...]
    inputs: int = 1
    outputs: tuple[int, ...] = ()
    structure: str = "tuple"
    extras: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


class Residual(nn.Module):
    """A module with modules inside, to be called whole or divided."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = Dense(), nn.LayerNorm(WIDTH), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.inner(self.norm(x)))


class Dense(nn.Module):
    """A layer with an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x))


class Affine(nn.Module):
    """Parameters and a buffer that functions read."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.register_buffer("shift", torch.linspace(-1.0, 1.0, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Convolved(nn.Module):
    """A convolution along the features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[:, None]).sum(1)


class Looked(nn.Module):
    """Rows of a table, as a value says."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(x.detach().sum(1).abs().clamp(max=4).nan_to_num().long())


class Multiplied(nn.Module):
    """Products with parameters of its own, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight) @ self.weight.T


def _halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=1)
    return torch.cat([second, first.sigmoid()], dim=1)


def _reshaped(x: Tensor) -> Tensor:
    return x.view(x.size(0), 2, WIDTH // 2).transpose(1, 2).reshape(x.size(0), WIDTH)


def _in_place(a: Tensor, b: Tensor) -> Tensor:
    total = a + b
    half = total * 0.5
    total[:, 1:].mul_(2)
    total.relu_()
    return total - half


def _without_gradient(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        gate = (a * 2).sigmoid()
    return gate * b


_FUNCTIONS: Final[dict[str, tuple[int, Callable[..., Tensor]]]] = {
    "add": (2, torch.add),
    "multiply": (2, torch.mul),
    "tanh": (1, torch.tanh),
    "halves": (1, _halves),
    "reshaped": (1, _reshaped),
    "in_place": (2, _in_place),
    "without_gradient": (2, _without_gradient),
    "function_dropout": (1, None),
}
_MODULES: Final[dict[str, Callable[[], nn.Module]]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "batch_norm": lambda: nn.BatchNorm1d(WIDTH),
    "layer_norm": lambda: nn.LayerNorm(WIDTH),
    "dropout": lambda: nn.Dropout(0.4),
    "dense": Dense,
    "residual": Residual,
    "affine": Affine,
    "convolved": Convolved,
    "looked": Looked,
    "multiplied": Multiplied,
}
_TIED: Final = ("same_module", "same_weight")
KINDS: Final = ("linear", *[k for k in _MODULES if k != "linear"], *_FUNCTIONS, *_TIED)
RANDOM: Final = frozenset({"dropout", "residual", "function_dropout"})
STATEFUL: Final = frozenset({"batch_norm"})
EXTRAS: Final = ("gate", "ids", "unused", "factor", "flag", "nothing")
"""A tensor without rows, whole numbers, a tensor that nobody reads, a number, a flag, None."""
ALSO: Final = ("mean", "order", "input", "again", "view", "number", "total", "phase")
"""A floating tensor without dimensions, whole numbers, the first input as it is, a value twice, a
transposed view of one, a number, a detached tensor without dimensions, complex numbers."""


class RecipeModel(nn.Module):
    """The model of a recipe; its weights depend on the seed only."""

    def __init__(self, recipe: Recipe, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.recipe = recipe
        self.first = nn.Linear(WIDTH, WIDTH)
        self.steps = nn.ModuleDict(
            {
                str(index): _MODULES[step.kind]()
                for index, step in enumerate(recipe.steps)
                if step.kind in _MODULES
            }
        )

    def forward(
        self,
        *inputs: Tensor,
        gate: Tensor | None = None,
        ids: Tensor | None = None,
        unused: Tensor | None = None,
        factor: float = 1.0,
        flag: bool = False,
        nothing: None = None,
    ) -> Any:
        early = self.first(inputs[-1] if ids is None else inputs[-1] + ids[:, None])
        values = [*inputs[:-1], early]
        for index, step in enumerate(self.recipe.steps):
            reads = [values[-1 - (back - 1) % len(values)] for back in step.reads]
            values.append(self._run(index, step.kind, reads))
        newest = (
            values[-1] + early
        )  # the longest skip there is, and something to train in any recipe
        newest = newest * factor if gate is None else newest * gate
        chosen = [newest, *(values[-1 - back % len(values)] for back in self.recipe.outputs)]
        if flag:
            chosen[0] = -newest
        chosen += [_also(kind, inputs, values, chosen) for kind in self.recipe.also]
        if len(chosen) == 1:
            return chosen[0]
        if self.recipe.structure == "dict":
            return {f"out{index}": value for index, value in enumerate(chosen)}
        return tuple(chosen)

    def _run(self, index: int, kind: str, reads: list[Tensor]) -> Tensor:
        if kind in _MODULES:
            return self.steps[str(index)](reads[0])
        if kind == "same_module":
            return self._earlier(index)(reads[0])
        if kind == "same_weight":
            return F.linear(reads[0], self.first.weight)
        if kind == "function_dropout":
            return F.dropout(reads[0], 0.3, self.training)
        arity, function = _FUNCTIONS[kind]
        return function(*(reads * 2)[:arity])

    def _earlier(self, index: int) -> nn.Module:
        earlier = [module for key, module in self.steps.items() if int(key) < index]
        return earlier[-1] if earlier else self.first


def _also(kind: str, inputs: tuple[Tensor, ...], values: list[Tensor], made: list[Any]) -> Any:
    middle = values[len(values) // 2]
    match kind:
        case "mean":
            return middle.square().mean()
        case "order":
            return middle.argsort(dim=1)
        case "input":
            return inputs[0]
        case "again":
            return made[0]
        case "view":
            return made[0].unflatten(1, (2, -1)).transpose(1, 2)
        case "number":
            return len(values)
        case "total":
            return middle.detach().sum()
        case _:
            return torch.polar(made[0].detach().float().abs(), middle.detach().float())


def extras(recipe: Recipe, rows: int, seed: int = 1) -> dict[str, Any]:
    """The further arguments of a recipe's model."""
    generator = torch.Generator().manual_seed(seed + 100)
    made = {
        "gate": torch.rand(WIDTH, generator=generator) + 0.5,
        "ids": torch.randint(0, 3, (rows,), generator=generator),
        "unused": torch.randn(rows, 2, generator=generator),
        "factor": 0.75,
        "flag": True,
        "nothing": None,
    }
    return {name: made[name] for name in recipe.extras}


def example(recipe: Recipe, rows: int, seed: int = 1) -> tuple[Tensor, ...]:
    """Inputs of a recipe's model."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, WIDTH, generator=generator) for _ in range(recipe.inputs))


@st.composite
def recipes(
    draw: st.DrawFn,
    max_steps: int = 8,
    without: frozenset[str] = frozenset(),
    has_more: bool = False,
) -> Recipe:
    """Models with branches, long skips, in-place writes, dropout, batch norm, tied weights and modules,
    grad-mode regions, several inputs and outputs. `without`: kinds of steps left out; `has_more`:
    arguments and results of other kinds too.
    """
    kinds = st.sampled_from([kind for kind in KINDS if kind not in without])
    back = st.one_of(st.just(1), st.integers(1, max_steps))
    size = draw(st.integers(2, max_steps))
    step = st.builds(Step, kinds, st.tuples(back, back))
    steps = draw(st.lists(step, min_size=size, max_size=size))
    recipe = Recipe(
        tuple(steps),
        draw(st.integers(1, 3)),
        draw(st.lists(st.integers(1, max_steps), max_size=2, unique=True).map(tuple)),
        draw(st.sampled_from(["tuple", "dict"])),
    )
    if not has_more:
        return recipe
    return replace(
        recipe,
        extras=draw(st.lists(st.sampled_from(EXTRAS), max_size=3, unique=True).map(tuple)),
        also=draw(st.lists(st.sampled_from(ALSO), max_size=3, unique=True).map(tuple)),
    )


@st.composite
def plans(draw: st.DrawFn, capture: Capture, max_stages: int = 4) -> PartitionPlan:
    """Any legal plan of a capture."""
    places = legal_cuts(capture)
    most = min(max_stages - 1, len(places))
    if not most:
        return plan_of(capture, ())
    cuts = draw(st.lists(st.sampled_from(places), max_size=most, unique=True))
    return plan_of(capture, sorted(cuts))


def costs(min_size: int = 1, max_size: int = 40) -> st.SearchStrategy[list[float]]:
    """Sequences of costs: equal ones, zeros, a few giants, anything."""
    any_size = {"min_size": min_size, "max_size": max_size}
    plain: Sequence[st.SearchStrategy[float]] = (
        st.sampled_from([0.0, 1.0]),
        st.sampled_from([1.0, 2.0, 3.0]),
        st.floats(0.0, 10.0, allow_subnormal=False),
        st.one_of(st.just(1.0), st.floats(10.0, 1000.0)),
    )
    return st.one_of(st.lists(one, **any_size) for one in plain)
