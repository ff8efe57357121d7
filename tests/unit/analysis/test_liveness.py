import torch
from torch import nn

from fxpipe.analysis.liveness import Lifetime, alive_bytes, lifetimes
from tests.builders import build_capture


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        early = self.a(x)
        return self.c(self.b(early)) + early + x, early


def test_lifetimes_span_from_the_maker_to_the_last_reader() -> None:
    capture = build_capture(Skip(), torch.randn(2, 4))
    assert [node.name for node in capture.body] == ["a", "b", "c", "add", "add_1"]
    assert lifetimes(capture) == (
        Lifetime("x", -1, (0, 4), 32, False),
        Lifetime("a", 0, (1, 3, 4), 32, True),
        Lifetime("b", 1, (2,), 32, True),
        Lifetime("c", 2, (3,), 32, True),
        Lifetime("add", 3, (4,), 32, True),
        Lifetime("add_1", 4, (), 32, True),
    )


def test_a_returned_value_stays_alive_to_the_last_node_and_inputs_do_not_count() -> None:
    capture = build_capture(Skip(), torch.randn(2, 4))
    # before:                       a   b   c   add add_1 end
    assert alive_bytes(capture) == (0, 32, 64, 64, 64, 0)


def test_a_value_that_nobody_reads_lives_nowhere() -> None:
    life = Lifetime("x", 3, (), 8, True)
    assert life.last == 3
