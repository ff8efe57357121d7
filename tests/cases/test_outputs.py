"""Results of every form, made in whichever stage."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.cases.blocks import WIDTH, Block, each
from tests.exact import CHUNKS, Batch, Kind, assert_exact_in_every_mode, vectors
from tests.reference import run_eager_step, split


class WithLoss(nn.Module):
    """A dict of logits, early hidden states and the model's own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        one = self.first(x)
        two = self.second(one)
        found: dict[str, Any] = {"logits": self.head(two), "hidden": (one, two)}
        if labels is not None:
            found["loss"] = F.cross_entropy(found["logits"], labels)
        return found


def labelled(rows: int) -> Batch:
    return (torch.randn(rows, WIDTH),), {"labels": torch.randint(0, 4, (rows,))}


class Returns(nn.Module):
    """Three blocks; `how` makes a result of the input and of what they gave."""

    def __init__(self, how: Callable[[Tensor, Tensor, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.one, self.two, self.three = Block(), Block(), Block()
        self.how = how

    def forward(self, x: Tensor) -> Any:
        a = self.one(x)
        b = self.two(a)
        c = self.three(b)
        return self.how(x, a, b, c)


class Pair(NamedTuple):
    first: Tensor
    second: Any = None


Triple = namedtuple("Triple", "a b c")


@dataclass
class Record:
    value: Tensor
    inner: Pair
    count: int = 2
    name: str = "record"


@dataclass(frozen=True, slots=True)
class Frozen:
    value: Tensor
    other: Tensor | None


class Bag:
    """A plain object of a user's class."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.parts = [value * 2, None]


class Labelled(OrderedDict[str, Any]):
    """A dict of a user's class, with attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def labelled_dict(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Labelled:
    return Labelled(logits=c, hidden=[a, b])


def complex_values(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    spectrum = torch.fft.rfft(c)
    return spectrum, torch.complex(a, b), spectrum.abs(), torch.view_as_real(torch.complex(b, a))


def views(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return c.view(c.shape[0], 2, -1), c[:, ::2], b.t().t(), a.unsqueeze(1).expand(-1, 3, -1)


def not_contiguous(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.stack((a, b, c), dim=1).transpose(1, 2)


def of_every_type(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> dict[str, Any]:
    return {
        "float": c,
        "half": c.to(torch.bfloat16),
        "double": a.double(),
        "long": (b * 10).long(),
        "bytes": (b.abs() * 10).to(torch.uint8),
        "bool": a > 0,
        "best": c.argmax(-1),
        "top": torch.topk(c, 2).indices,
    }


RESULTS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "early ones": lambda x, a, b, c: (a, b, c),
    "an early one last": lambda x, a, b, c: [c, a],
    "only an early one and a number": lambda x, a, b, c: (a, c.sum()),
    "one tensor twice": lambda x, a, b, c: (c, [c, a], a),
    "the input unchanged": lambda x, a, b, c: (x, c),
    "a view of the input": lambda x, a, b, c: (x[:, :2], c, x.unsqueeze(1)),
    "numbers without dimensions": lambda x, a, b, c: {
        "mean": c.mean(),
        "early": a.mean(),
        "out": c,
    },
    "constants": lambda x, a, b, c: (c, None, 3, "text", 2.5, True, (), [], {}, x.dtype),
    "nested": lambda x, a, b, c: {"a": {"b": [{"c": (a, {"d": b})}]}, 1: c, "none": {"x": None}},
    "named tuples": lambda x, a, b, c: Pair(c, Triple(a, (b, a), None)),
    "dataclasses": lambda x, a, b, c: Record(c, Pair(a, [b])),
    "slots": lambda x, a, b, c: Frozen(c, a),
    "an object": lambda x, a, b, c: Bag(c),
    "a dict of one's own": labelled_dict,
    "complex": complex_values,
    "views": views,
    "not contiguous": not_contiguous,
    "every type": of_every_type,
    "detached": lambda x, a, b, c: (c, a.detach(), b.detach().clone()),
    "sizes": lambda x, a, b, c: (c, c.shape[1], tuple(c.shape[1:])),
    "a struct of torch": lambda x, a, b, c: (torch.max(c, dim=1), torch.sort(a), c),
    "rows in the second dimension": lambda x, a, b, c: (c.t(), torch.stack((a, b))),
    "changed in place after": lambda x, a, b, c: (a, (c + 1).add_(a).mul_(2)),
}
KINDS = {
    "loss inside": Kind(WithLoss, labelled, loss=None, cuts=("second", "head")),
    "loss inside, unused": Kind(WithLoss, labelled, cuts=("second", "head")),
    "without labels": Kind(WithLoss, vectors(WIDTH), cuts=("second", "head")),
    **{
        name: Kind(lambda how=how: Returns(how), vectors(WIDTH), cuts=("two", "three"))
        for name, how in RESULTS.items()
    },
}


@each(KINDS)
def test_results_are_joined_as_they_were_made(name: str, stages: int) -> None:
    assert_exact_in_every_mode(KINDS[name], stages)


def test_a_loss_of_the_model_s_own_is_that_of_the_whole_batch() -> None:
    kind = KINDS["loss inside"]
    model, eager = kind.model(), kind.model()
    args, kwargs = kind.data(8)
    whole = eager(*args, **kwargs)
    whole["loss"].backward()
    with kind.pipe(model, 3, chunks=4) as pipe:
        result = pipe.step(*args, **kwargs)
        assert list(result.output) == ["logits", "hidden", "loss"]
        torch.testing.assert_close(result.loss, whole["loss"])
        torch.testing.assert_close(result.output["loss"], result.loss)
        torch.testing.assert_close(result.output["hidden"][0], whole["hidden"][0])
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


class Numbers(nn.Module):
    """Integers without a batch dimension: no two micro-batches agree on them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.two(self.one(x))
        return {"y": y, "positive": (y > 0).sum(), "loss": y.square().mean()}


def test_what_cannot_be_joined_comes_back_per_micro_batch() -> None:
    kind = Kind(Numbers, vectors(WIDTH), loss=None, cuts=("two",))
    model, eager = kind.model(), kind.model()
    batch = kind.data(8)
    expected = run_eager_step(eager, *batch, chunks=CHUNKS, deferred_norms=False)
    with kind.pipe(model, 2) as pipe:
        result = pipe.step(*batch[0])
    counts = [output["positive"] for output in expected.outputs]
    assert torch.equal(torch.stack(list(result.output["positive"])), torch.stack(counts))


def test_a_tensor_returned_twice_is_one_tensor() -> None:
    kind = KINDS["one tensor twice"]
    with kind.pipe(kind.model(), 2) as pipe:
        args, _ = kind.data(8)
        for one, (other, *_), _ in (pipe(*args), pipe.step(*args, loss_fn=kind.loss).output):
            assert one is other


@pytest.mark.parametrize("name", ["early ones", "views", "one tensor twice", "nested"])
def test_gradients_come_back_through_the_drop_in_call(name: str) -> None:
    """Through every result at once, also where a tensor is returned twice or as a view."""
    kind = KINDS[name]
    model, eager = kind.model(), kind.model()
    batch = kind.data(8)
    with kind.pipe(model, 3) as pipe:
        output = pipe(*batch[0])
        kind.loss(output).backward()
    kind.loss(eager(*batch[0])).backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert len(split(batch, CHUNKS)[0]) == CHUNKS
