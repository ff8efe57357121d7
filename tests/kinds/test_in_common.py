"""What modules have in common besides arguments and results: objects, tensors' attributes, closures."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxpipe
from tests.cases.blocks import WIDTH, Block
from tests.exact import Kind, vectors
from tests.kinds.check import assert_works, each


class Shared:
    """An object of the user's that several modules hold."""

    mask: Tensor | None = None


class Writes(nn.Module):
    def __init__(self, shared: Shared, decides: bool = False) -> None:
        super().__init__()
        self.layer, self.shared, self.decides = nn.Linear(WIDTH, WIDTH), shared, decides

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.decides and x.abs().max() > 1e9:
            x = x / 2
        self.shared.mask = x.sigmoid()
        return x


class Reads(Writes):
    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.decides and x.abs().max() > 1e9:
            x = x / 2
        assert self.shared.mask is not None
        return x * self.shared.mask


class InCommon(nn.Module):
    """Two modules with an object in common."""

    def __init__(self, *decides: bool) -> None:
        super().__init__()
        shared = Shared()
        self.one, self.writes, self.two = Block(), Writes(shared, decides[0]), Block()
        self.reads, self.three = Reads(shared, decides[1]), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.reads(self.two(self.writes(self.one(x)))))


class Around(nn.Module):
    """The two are in one submodule, which can stay whole."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner, self.after = Block(), InCommon(False, True), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


class Normalises(nn.Module):
    """Called twice: the second call undoes the first one with what that has kept."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor, *, back: bool = False) -> Tensor:
        if back:
            return x / self.scale * self.spread + self.mean
        self.mean = x.mean(0, keepdim=True).detach()
        self.spread = x.abs().amax(0, keepdim=True).detach() + 1
        return (x - self.mean) / self.spread * self.scale


class Undone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.two = Normalises(), Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.two(self.one(self.norm(x))), back=True)


class KeepsInAnObject(nn.Module):
    """Decides on data, and reads in its second call what its first one put into an object."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shared = nn.Linear(WIDTH, WIDTH), Shared()

    def forward(self, x: Tensor, again: bool) -> Tensor:
        if again:
            assert self.shared.mask is not None
            return x * self.shared.mask
        x = self.layer(x)
        self.shared.mask = x.sigmoid() if x.abs().max() < 1e9 else x
        return x


class CalledAgain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.keeps, self.two, self.three = Block(), KeepsInAnObject(), Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        x = self.keeps(self.one(x), again=False)
        return self.three(self.keeps(self.two(x), again=True))


class OtherMethod(nn.Module):
    """Others call a method of a module, which keeps a tensor, and none calls the module."""

    class Book(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sums", torch.rand(5, WIDTH))
            self.entries: Tensor | None = None

        def nearest(self, x: Tensor) -> Tensor:
            if self.entries is None:
                self.entries = self.sums / 2
            return self.entries[torch.cdist(x, self.entries).argmin(-1)]

    def __init__(self) -> None:
        super().__init__()
        self.one, self.book, self.two = Block(), self.Book(), Block()

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.two(x + (self.book.nearest(x) - x).detach())


class Marks(nn.Module):
    """A module puts an attribute on a tensor, and another one reads it."""

    class Mark(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            scale = getattr(x, "scale", 1)
            x = self.layer(x) * scale
            x.scale = scale + 1  # type: ignore[attr-defined]
            return x

    def __init__(self) -> None:
        super().__init__()
        self.marks = nn.ModuleList(self.Mark() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for mark in self.marks:
            x = mark(x)
        return x


class Applies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, function: Any) -> Tensor:
        return function(self.layer(x))


class HandsClosures(nn.Module):
    """Functions with tensors in them, and a deque of tensors, go into submodules."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, values: deque[Tensor]) -> None:
            values.append(self.layer(values[-1]))

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last, self.three = Applies(), Applies(), self.Last(), Block()

    def forward(self, x: Tensor) -> Tensor:
        mask = (x > 0).float()
        x = self.two(self.one(x, lambda h: h * mask), functools.partial(torch.mul, mask))
        values = deque([x], maxlen=2)
        self.last(values)
        return self.three(values[0] + values[1])


class HooksWithTensors(nn.Module):
    """A hook on a gradient uses a tensor that forward computes."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer(x)
            size = x.detach().abs().mean()
            if x.requires_grad:
                x.register_hook(lambda grad: grad * size)
            return x

    def __init__(self) -> None:
        super().__init__()
        self.one, self.scaled, self.two = Block(), self.Scaled(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.scaled(self.one(x)))


class Gives(Exception):  # noqa: N818 - what users write
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


class Raises(nn.Module):
    """A submodule ends with an exception, which its caller takes the result from."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Block(), Block()

        def forward(self, x: Tensor) -> Tensor:
            raise Gives(self.two(self.one(x)))

    def __init__(self) -> None:
        super().__init__()
        self.one, self.inner, self.two = Block(), self.Inner(), Block()

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        try:
            x = self.inner(x)
        except Gives as result:
            x = result.value
        return self.two(x)


class Sizes(nn.Module):
    """Sizes and slices among the results follow the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.two(self.one(x))
        return {"y": y, "size": x.shape, "inner": x.shape[1:], "rows": slice(0, x.shape[0])}


KINDS = {
    "Undone": Kind(Undone, vectors(WIDTH), tied=None),
    "an object": Kind(lambda: InCommon(False, False), vectors(WIDTH)),
    **{
        cls.__name__: Kind(cls, vectors(WIDTH))
        for cls in (
            Around,
            CalledAgain,
            OtherMethod,
            Marks,
            HandsClosures,
            HooksWithTensors,
            Raises,
        )
    },
}


@each(KINDS)
def test_what_modules_have_in_common_is_followed(kind: Kind) -> None:
    assert_works(kind, places=6)


def leaves(model: nn.Module) -> list[str]:
    torch.manual_seed(0)
    return [leaf.path for leaf in fxpipe.trace(model, (torch.randn(4, WIDTH),)).leaves]


def test_what_stays_whole() -> None:
    assert leaves(Around()) == ["inner"]
    assert leaves(CalledAgain()) == ["keeps"]
    assert leaves(HooksWithTensors()) == ["scaled"]
    for model in (Undone(), OtherMethod(), Marks(), HandsClosures(), Raises()):
        assert leaves(model) == []


def test_calls_that_share_state_are_not_parted() -> None:
    capture = fxpipe.trace(CalledAgain(), (torch.randn(4, WIDTH),))
    with pytest.raises(fxpipe.PartitionError, match="call 'keeps', which keeps tensors"):
        fxpipe.partition(capture, fxpipe.estimate(capture, CalledAgain()), 2, cuts=["two"])


@pytest.mark.parametrize(
    ("decides", "reason"),
    [
        (
            (False, True),
            "'reads', which stays whole, holds an object in which another module keeps",
        ),
        ((True, False), "a tensor leaves it by a hook or an attribute"),
    ],
)
def test_what_no_graph_shows_is_refused(decides: tuple[bool, bool], reason: str) -> None:
    with pytest.raises(fxpipe.CaptureError, match=reason) as caught:
        fxpipe.trace(InCommon(*decides), (torch.randn(4, WIDTH),))
    assert "test_in_common.py" in str(caught.value)


@pytest.mark.parametrize("stages", [1, 2])
def test_sizes_among_the_results(stages: int) -> None:
    kind = Kind(Sizes, vectors(WIDTH))
    with kind.pipe(kind.model(), stages) as pipe:
        found = pipe(torch.randn(10, WIDTH))
    assert found["size"] == [torch.Size([n, WIDTH]) for n in (4, 3, 3)]
    assert found["rows"] == [slice(0, n) for n in (4, 3, 3)]
    assert found["inner"] == torch.Size([WIDTH])


def test_looking_for_what_is_shared_writes_nothing_down() -> None:
    capture = fxpipe.trace(Around(), (torch.randn(4, WIDTH),))
    assert all(node.users for node in capture.graph.nodes if node.op == "get_attr")


def test_notes_of_torch_on_tensors_do_not_count() -> None:
    class Notes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Block(), Block()

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            torch._dynamo.mark_static_address(x)
            return self.two(x)

    capture = fxpipe.trace(Notes(), (torch.randn(4, WIDTH),))
    assert all(span.fixed is None for span in capture.spans)
